"""The runtimes' settings and what they keep: directories that point elsewhere, the cache, its disk, the clock.

One rule: of their configuration only the lines that name directories are read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress

from cni import delegate
from cni.errors import CniError
from podwire.doctor.finding import Check, Fault, Finding, Severity, fine_one
from podwire.doctor.node import Node, mount_point, read_text, types_of
from podwire.output import counted
from podwire.shell import quote

_GROUP = "runtime"
_SKEW_S = 60.0

_ELSEWHERE = Fault(
    "runtime-looks-elsewhere",
    Severity.WARNING,
    "a runtime is configured with other directories than those that are looked at: what is told is not about its pods",
    "set its directories, or call `podwire doctor` with --conf-dir and --bin-dir",
)
_NETAVARK = Fault(
    "podman-without-cni",
    Severity.NOTE,
    "podman is here and its configuration asks for netavark: it uses no CNI plugins",
    'network_backend = "cni" in containers.conf, if it is to use them',
)
_GONE = Fault(
    "dead-attachments",
    Severity.WARNING,
    "the cache has attachments whose namespaces are gone: their DEL was never run, or failed",
    "`podwire gc NETWORK`",
)
_DISK = Fault(
    "cache-full",
    Severity.PROBLEM,
    "the file system of the cache is full or read-only: runtimes cannot note what they attach, and each ADD fails",
    "make room",
)
_CLOCK = Fault(
    "clock-set-back",
    Severity.NOTE,
    "files of the cache are from the future: the clock was set back, or is wrong",
    "set the clock (`timedatectl`)",
)

_CONTAINERD = "/etc/containerd/config.toml"
_CRIO = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d")
_PODMAN = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf")
_PODMAN_DIRS = ("/usr/local/libexec/cni", "/usr/libexec/cni", "/usr/local/lib/cni", "/usr/lib/cni", "/opt/cni/bin")
_KEY = re.compile(r"""^\s*(?P<key>\w+)\s*=\s*(?P<value>\[[^]]*\]|"[^"]*"|'[^']*')""", re.MULTILINE)
_TEXT = re.compile(r"""["']([^"']*)["']""")


def _directories(node: Node) -> Iterator[Finding]:
    conf_dir, bin_dirs = os.path.normpath(node.conf_dir), [os.path.normpath(one) for one in node.bin_dirs]
    for path, section, conf_key, bin_key in _settings():
        found = values(read_text(path), section)
        for value in found.get(conf_key, [])[:1]:
            if os.path.normpath(value) != conf_dir:
                text = f"it has {conf_key} = {value}, and {conf_dir} is looked at"
                yield _ELSEWHERE.found(path, text, f"podwire doctor --conf-dir {value}")
        texts = found.get(bin_key) or found.get(f"{bin_key}s", [])  # containerd 2 has a list
        listed = [os.path.normpath(value) for value in texts if value]
        if listed and not set(listed).intersection(bin_dirs):
            text = f"it has {bin_key} = {':'.join(listed)}, and {':'.join(bin_dirs)} is looked at"
            yield _ELSEWHERE.found(path, text, f"podwire doctor --bin-dir {':'.join(listed)}")
    for path in _PODMAN:
        if _backend(path) == "netavark":
            yield _NETAVARK.found(path, 'network_backend is "netavark"', _NETAVARK.cure)
    yield from _others_first(node)


def _others_first(node: Node) -> Iterator[Finding]:
    """Yields the first plugin of which podman, with the CNI backend, finds another file than the one looked at."""
    settings: dict[str, list[str]] = {}
    for path in _PODMAN:
        settings.update(values(read_text(path), "network"))
    listed = tuple(settings.get("cni_plugin_dirs") or _PODMAN_DIRS)
    shared = {os.path.normpath(one) for one in listed} & {os.path.normpath(one) for one in node.bin_dirs}
    if settings.get("network_backend") != ["cni"] or not shared:
        return
    for kind in sorted({kind for network in node.networks for kind in types_of(network)}):
        theirs, ours = _first(kind, listed), _first(kind, node.bin_dirs)
        if not theirs or (ours and _is_same(theirs, ours)):
            continue
        text = f"podman runs {theirs}, and {ours or ':'.join(node.bin_dirs)} is looked at"
        order = ", ".join(f'"{os.path.dirname(one)}"' for one in (ours, theirs))
        others = f"podwire doctor --bin-dir {os.path.dirname(theirs)}"
        yield _ELSEWHERE.found(
            _PODMAN[-1], text, f"in containers.conf: cni_plugin_dirs = [{order}]" if ours else others
        )
        return


def _first(kind: str, path: tuple[str, ...]) -> str:
    """Returns the file of that name which is found first, "" where there is none, which another check tells."""
    with suppress(CniError):
        return delegate.find(kind, path)
    return ""


def _is_same(one: str, other: str) -> bool:
    """Tells whether two files are one, or one's copy, as `podwire install` makes them: of the same size."""
    return os.path.samefile(one, other) or os.path.getsize(one) == os.path.getsize(other)


def _backend(path: str) -> str:
    return "".join(values(read_text(path), "network").get("network_backend", []))


def _settings() -> Iterator[tuple[str, str, str, str]]:
    """Yields the runtimes' files, each with its section and the keys of the two directories."""
    yield _CONTAINERD, "cni", "conf_dir", "bin_dir"
    yield _CRIO[0], "crio.network", "network_dir", "plugin_dirs"
    if os.path.isdir(_CRIO[1]):
        for name in sorted(os.listdir(_CRIO[1])):
            yield os.path.join(_CRIO[1], name), "crio.network", "network_dir", "plugin_dirs"
    for path in _PODMAN:
        if _backend(path) != "netavark":
            yield path, "network", "network_config_dir", "cni_plugin_dirs"


def values(text: str, section: str) -> dict[str, list[str]]:
    """Returns the texts of the keys in a TOML file's sections whose name ends with `section`, without comments.

    A list of texts, or one text; what else TOML can say these keys are not.
    """
    found: dict[str, list[str]] = {}
    for part in re.split(r"^\s*(?=\[[^]\n=]*\]+\s*(?:#.*)?$)", text, flags=re.MULTILINE):
        head, _, body = part.partition("\n")
        name = head.partition("#")[0].strip().strip("[]").replace('"', "").replace("'", "")
        if name == section or name.endswith(f".{section}"):
            for match in _KEY.finditer(body):
                found.setdefault(match["key"], _TEXT.findall(match["value"]))
    return found


def _cache(node: Node) -> Iterator[Finding]:
    dead: dict[str, int] = {}
    for one in node.known:
        if not one.lives:
            dead[one.network_name] = dead.get(one.network_name, 0) + 1
    for name, number in dead.items():
        text = f"{counted(number, 'attachment')} in {node.cache_dir}/results without a namespace any more"
        yield _GONE.found(name, text, node.command("gc", name))
    if node.known and not dead:
        yield fine_one("cache", f"{node.cache_dir}/results", f"{counted(len(node.known), 'attachment')}, all alive")


def _disk(node: Node) -> Iterator[Finding]:
    directory = node.cache_dir
    if not os.path.isdir(directory):
        return
    about = os.statvfs(directory)
    if about.f_flag & os.ST_RDONLY:
        yield _DISK.found(
            directory, "it is on a read-only file system", f"mount -o remount,rw {quote(mount_point(directory))}"
        )
    elif about.f_blocks and not about.f_bavail:
        yield _DISK.found(directory, "its file system is full", f"make room: df {directory}")
    elif about.f_files and not about.f_favail:
        yield _DISK.found(directory, "its file system can have no more files", f"make room: df -i {directory}")


def _clock(node: Node) -> Iterator[Finding]:
    newest = max((os.lstat(one.path).st_mtime for one in node.known if os.path.lexists(one.path)), default=0.0)
    if newest > time.time() + _SKEW_S:
        text = f"the newest attachment is from {newest - time.time():.0f} s in the future"
        yield _CLOCK.found("clock", text, _CLOCK.cure)


CHECKS = (
    Check(_GROUP, "directories", "runtimes look where we look", _directories, (_ELSEWHERE, _NETAVARK)),
    Check(_GROUP, "cache", "the cache has no attachment", _cache, (_GONE,)),
    Check(_GROUP, "disk", "the cache can be written", _disk, (_DISK,)),
    Check(_GROUP, "clock", "no file is from the future", _clock, (_CLOCK,)),
)
