"""The container runtimes installed on this host, and the directories in which each looks for plugins and networks.

Settings are read as the runtime reads them: the same files in the same order, by a TOML parser. Runtimes
without an installed program are ignored, since `apt remove` leaves their files. What containerd's files leave
open depends on its version and its build, and is read from `containerd config`.
"""

from __future__ import annotations

import fnmatch
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cni import gojson
from cni.errors import CniError, Code
from podwire.node.programs import find_program, get_output_lines
from process import files

BIN_DIR, CONF_DIR = "/opt/cni/bin", "/etc/cni/net.d"  # built into containerd and CRI-O

_MOST_BYTES = 1 << 20
_RUN = "/run"

_CONTAINERD = "/etc/containerd/config.toml"
# The plugin with the CNI settings, by the file's version. 1.x knows versions 1 and 2, containerd 2.x all of them.
_CRI = {1: "cri", 2: "io.containerd.grpc.v1.cri"}
_CRI_SINCE_3 = "io.containerd.cri.v1.runtime"
_CRI_NAMES = (*_CRI.values(), _CRI_SINCE_3, "io.containerd.cri.v1.images")

# The daemons' sockets, also below another directory, such as k3s's; the flags of a listening one in /proc/net/unix.
_SOCKETS = {"containerd": "/containerd/containerd.sock", "CRI-O": "/crio/crio.sock"}
_LISTENS = "00010000"

_CRIO, _CRIO_MORE = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"

# containers.conf(5), of root.
_NETAVARK_DIR, _PODMAN_SUBNET = "/etc/containers/networks", "10.88.0.0/16"
_PODMAN = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf")
_PODMAN_BIN_DIRS = (
    "/usr/local/libexec/cni",
    "/usr/libexec/cni",
    "/usr/local/lib/cni",
    "/usr/lib/cni",
    "/opt/cni/bin",
)
_PODMAN_HELPER_DIRS = (
    "/usr/local/libexec/podman",
    "/usr/local/lib/podman",
    "/usr/libexec/podman",
    "/usr/lib/podman",
)
_PODMAN_CHOICE = "/var/lib/containers/storage/defaultNetworkBackend"  # podman writes it at its first start


@dataclass(frozen=True)
class Runtime:
    """A runtime: `bin_dirs` in search order; `source` is the file that sets them, "" for the default.

    `without_cni` is the reason why it runs no CNI plugins, "" if it does. `problem` is set if its settings cannot be
    read; the directories are unknown then.
    """

    name: str
    bin_dirs: tuple[str, ...] = ()
    conf_dir: str = CONF_DIR
    source: str = ""
    without_cni: str = ""
    problem: CniError | None = None

    def install_dir(self, names: Iterable[str]) -> str:
        """Returns the directory from which it would run `names`: the first that has any of them, or that exists."""
        kinds = list(names)
        used = (one for one in self.bin_dirs if any(os.path.isfile(os.path.join(one, kind)) for kind in kinds))
        present = (one for one in self.bin_dirs if os.path.isdir(one))
        return next(used, "") or next(present, "") or self.bin_dirs[0]


def list_installed(env: Mapping[str, str]) -> tuple[Runtime, ...]:
    """Returns the runtimes whose program is on PATH or in a usual directory, or which run."""
    runtimes = []
    for name, program, state, read in _RUNTIMES:
        path = find_program(program, env.get("PATH", ""))
        if path or os.path.isdir(os.path.join(_RUN, state)):
            try:
                runtimes.append(read(path))
            except CniError as error:
                runtimes.append(Runtime(name, problem=error))
    return tuple(runtimes)


def list_bin_dirs(env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the existing directories in which the installed runtimes look for plugins."""
    every = (path for runtime in list_installed(env) for path in runtime.bin_dirs)
    return tuple(dict.fromkeys(path for path in every if os.path.isdir(path)))


def is_running(name: str) -> bool:
    """Returns whether a runtime's daemon listens on its socket in this network namespace; podman has no daemon."""
    if name not in _SOCKETS:
        return True
    try:
        lines = files.read("/proc/net/unix", _MOST_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return True
    listening = (line.split() for line in lines[1:])
    return any(len(words) == 8 and words[3] == _LISTENS and words[7].endswith(_SOCKETS[name]) for words in listening)


def containerd_version(env: Mapping[str, str]) -> str:
    """Returns the version of the installed containerd ("1.7.24~ds1"), "" if it does not print one."""
    output = " ".join(_output_lines(find_program("containerd", env.get("PATH", "")), "--version"))
    match = re.search(r" v?(\d+\.\S+)", output)
    return match[1] if match else ""


def _output_lines(program: str, *options: str) -> list[str]:
    """Returns the lines that a runtime's program prints, [] if it is not here, fails, or cannot be started."""
    try:
        return get_output_lines(program, *options) if program else []
    except (CniError, OSError):
        return []


def _containerd(program: str) -> Runtime:
    main = _read(_CONTAINERD)
    disabled = set[str]()
    sections: list[Mapping[str, object]] = []
    sources: dict[tuple[str, ...], str] = {}
    versions = set[int]()
    for path, document in _imported(_CONTAINERD, main or {}):
        versions.add(version := _integer(document.get("version")) or _integer((main or {}).get("version")) or 1)
        disabled.update(_texts(document.get("disabled_plugins")))
        section = _cni_section(document, version)
        if section is not None:
            sections.append(section)
            sources[_bin_dirs(section)] = path
    cni = sections[-1] if sections else {}  # containerd 1 replaces the whole section of a plugin
    # containerd 2 merges sections, and ignores `cni` of version 1. Where no file sets the directory, the build does:
    # Debian's has /usr/lib/cni.
    if len(sections) > 1 or 1 in versions or not _bin_dirs(cni):
        cni = _printed(program, "default" if main is None else "dump") or cni
    listed = _bin_dirs(cni)
    disabled_cri = sorted(disabled.intersection(_CRI_NAMES))
    return Runtime(
        "containerd",
        listed or (BIN_DIR,),
        _text(cni.get("conf_dir")) or CONF_DIR,
        sources.get(listed, "") if listed else "",
        f'{_CONTAINERD} has "{disabled_cri[0]}" in disabled_plugins' if disabled_cri else "",
    )


def _cni_section(document: Mapping[str, object], version: int) -> Mapping[str, object] | None:
    """Returns the CNI settings in a file of containerd, None if it has no section of the CRI plugin."""
    section = _table(document, "plugins").get(_CRI.get(version, _CRI_SINCE_3))
    return _table(section, "cni") if isinstance(section, dict) else None


def _bin_dirs(cni: Mapping[str, object]) -> tuple[str, ...]:
    """Returns the plugin directories: `bin_dir` if set. Beside it, containerd prints an unused default `bin_dirs`."""
    return _normal(_texts(cni.get("bin_dir")) or _texts(cni.get("bin_dirs")))


def _printed(program: str, command: str) -> Mapping[str, object]:
    """Returns the CNI settings that `containerd config` prints, {} if it prints none."""
    try:
        document = tomllib.loads("\n".join(_output_lines(program, "config", command)))
    except ValueError:
        return {}
    return _cni_section(document, _integer(document.get("version"))) or {}


def _imported(path: str, document: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yields containerd's file and its imports; later files override earlier ones."""
    pending, done = [(path, document)], set()
    while pending:
        path, document = pending.pop(0)
        yield path, document
        done.add(path)
        for pattern in _texts(document.get("imports")):
            for one in _matching(os.path.join(os.path.dirname(path), pattern)):
                if one not in done and one not in [waiting for waiting, _ in pending]:
                    pending.append((one, _read(one) or {}))


def _matching(path: str) -> list[str]:
    """Returns the files that match a path, whose last component may be a pattern."""
    path = os.path.normpath(path)
    directory, pattern = os.path.split(path)
    if "*" not in pattern:
        return [path]
    return [os.path.join(directory, name) for name in _listed(directory) if fnmatch.fnmatchcase(name, pattern)]


def _crio(_program: str) -> Runtime:
    paths = (_CRIO, *(os.path.join(_CRIO_MORE, name) for name in _listed(_CRIO_MORE)))
    network, sources = _merged(paths, "crio", "network")
    listed = _normal(_texts(network.get("plugin_dirs")))
    conf_dir = _text(network.get("network_dir")) or CONF_DIR
    return Runtime("CRI-O", listed or (BIN_DIR,), conf_dir, sources.get("plugin_dirs", "") if listed else "")


def list_podman_subnets(env: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yields name, source and subnet of podman's networks that are not in net.d, if podman is installed.

    These are its default network, which has no file unless it was changed, and netavark's. Raises CniError.
    """
    if not find_program("podman", env.get("PATH", "")):
        return
    network, _ = _merged(_podman_files(), "network")
    directory = _text(network.get("network_config_dir")) or _NETAVARK_DIR
    named = set()
    for path in (os.path.join(directory, name) for name in _listed(directory) if name.endswith(".json")):
        document = _read_netavark(path)
        name = _text(document.get("name"))
        named.add(name)
        subnets = document.get("subnets")
        for subnet in subnets if isinstance(subnets, list) else ():
            yield name, path, _text(subnet.get("subnet")) if isinstance(subnet, dict) else ""
    if (default := _text(network.get("default_network")) or "podman") not in named:
        yield default, "its default", _text(network.get("default_subnet")) or _PODMAN_SUBNET


def _read_netavark(path: str) -> Mapping[str, object]:
    """Returns the content of a file of netavark, {} if it cannot be read."""
    try:
        document = gojson.loads(files.read(path, _MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _podman_files() -> list[str]:
    paths = []
    for path in _PODMAN:
        more = f"{path}.d"
        paths += [path, *(os.path.join(more, name) for name in _listed(more) if name.endswith(".conf"))]
    return paths


def _podman(_program: str) -> Runtime:
    paths = _podman_files()
    network, sources = _merged(paths, "network")
    engine, _ = _merged(paths, "engine")
    listed = _normal(_texts(network.get("cni_plugin_dirs")))
    backend = _text(network.get("network_backend"))
    chosen = f'{sources.get("network_backend")} has network_backend = "{backend}"'
    if not backend:
        backend, chosen = _podman_default(_texts(engine.get("helper_binaries_dir")) or _PODMAN_HELPER_DIRS)
    return Runtime(
        "podman",
        listed or _PODMAN_BIN_DIRS,
        _text(network.get("network_config_dir")) or CONF_DIR,
        sources.get("cni_plugin_dirs", "") if listed else "",
        "" if backend == "cni" else chosen,
    )


def _podman_default(helpers: Iterable[str]) -> tuple[str, str]:
    """Returns podman's default backend, and the reason for it."""
    try:
        return files.read(_PODMAN_CHOICE, _MOST_BYTES).decode("utf-8", "replace"), f"{_PODMAN_CHOICE} says so"
    except (OSError, ValueError):
        pass
    for directory in helpers:
        program = os.path.join(directory, "netavark")
        if os.path.exists(program):
            return "netavark", f"it uses {program}"
    return "cni", ""


_RUNTIMES = (
    ("containerd", "containerd", "containerd", _containerd),
    ("CRI-O", "crio", "crio", _crio),
    ("podman", "podman", "libpod", _podman),
)


def _merged(paths: Iterable[str], *section: str) -> tuple[dict[str, object], dict[str, str]]:
    """Returns the keys of a section, later files overriding earlier ones, and the file that sets each key."""
    keys: dict[str, object] = {}
    sources: dict[str, str] = {}
    for path in paths:
        table: Mapping[str, object] = _read(path) or {}
        for name in section:
            table = _table(table, name)
        keys.update(table)
        sources.update(dict.fromkeys(table, path))
    return keys, sources


def _read(path: str) -> dict[str, object] | None:
    """Returns a TOML file's content, None if there is no such file; raises CniError(5) and CniError(6)."""
    try:
        document: dict[str, object] = tomllib.loads(files.read(path, _MOST_BYTES).decode())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CniError(Code.IO_FAILURE, f"cannot read {path}: {error.strerror}", "run podwire as root") from error
    except (ValueError, RecursionError) as error:
        raise CniError(Code.DECODING_FAILURE, f"{path} is not TOML: {error}", "correct the file") from error
    return document


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CniError(Code.IO_FAILURE, f"cannot read {directory}: {error.strerror}", "run podwire as root") from error


def _table(table: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = table.get(name)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    """Returns the texts of a list; one text is a list of one."""
    return tuple(item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str) and item)


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0


def _normal(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(os.path.normpath(path) for path in paths)
