"""`podwire install` and `podwire uninstall`: install this file under the names of its plugins, and remove it.

No other vendor's file is lost: replaced files are kept, files that are not podwire's stay.
"""

from __future__ import annotations

import hashlib
import os
import stat
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote

from attachment.presence import Presence
from cni import gojson, skel
from cni.errors import CniError, Code
from podwire import attachments, default_network, networks, pod_cidrs, range_conflicts, renumbering, runtimes
from podwire.command import (
    BIN_DIR,
    CONF_DIR,
    Command,
    Context,
    ExitStatus,
    UsageError,
    add_cache_dir,
    add_conf_dir,
    conf_dir,
    layers,
)
from podwire.installing import PACKAGE_FIX, Directory, Manifest, filesystem_error, is_packaged, write_atomically
from podwire.layers import Layer
from podwire.lint import positions
from podwire.output import plural
from podwire.renumbering import RangeChange
from podwire.runtimes import Runtime
from process import files

_PROGRAM = "/proc/self/exe"
_LINK_DIR = "/usr/local/bin"
_INFINITIVES = {"left": "leave", "removed": "remove", "restored": "restore", "wrote": "write"}  # for --dry-run

_INSTALL = f"""\
Installs this file in a directory of plugins under the names of all its plugins (`podwire list`) and as `podwire`: one
copy, with hard links. Each file is replaced atomically, so you can install and upgrade while pods are starting. Before
that, the new file is run once in that directory.

Replaced files (such as the reference plugins) are kept in .podwire-replaced in the same directory, for `podwire
uninstall`. After an interrupted installation every name still works; the next installation completes it.

--conf also writes a network to {CONF_DIR}: that of FILE, or without FILE {default_network.FILE}, a masqueraded
bridge with host ports and limits. Its addresses are those of --subnet, or the podCIDRs in the file that --node names,
this node's Node object in Kubernetes. FILE contains the addresses itself, or gets them if its host-local has no
"ranges". Runtimes use the first file in lexicographic order. An existing file is replaced only if podwire wrote it and
it was not changed since. A change of the network's addresses is printed, and refused without --force while pods run on
its bridge: the bridge has their gateway, and new pods would fail.

At the end it reads the settings of containerd, CRI-O and podman, if they are installed, and prints the directory from
which each runs plugins, with the command that installs there if it differs (Debian 12: /usr/lib/cni). A network of
podman, or of another file, with some of the same addresses is reported."""

_UNINSTALL = """\
Restores the files that `podwire install` replaced, and removes the other names that it created. Files that are not
podwire's stay, and so does a configuration that was changed since. A symbolic link on PATH to the tool is also removed.
If another runtime directory also has podwire, the command that removes it there is printed.
Pods keep running; the restored plugins run their DEL, since rules, files and settings have the same names. If plugins
of a running pod would be missing, its DEL would fail: that needs --force."""


def _add_directory(parser: ArgumentParser) -> None:
    parser.add_argument("--bin-dir", metavar="DIR", default=BIN_DIR, help=f"the directory of plugins ({BIN_DIR})")
    parser.add_argument("--dry-run", action="store_true", help="print the changes and make none")
    add_conf_dir(parser)
    add_cache_dir(parser)


def _add_uninstall(parser: ArgumentParser) -> None:
    _add_directory(parser)
    parser.add_argument("--force", action="store_true", help="also remove the plugins of running pods")


def _add_install(parser: ArgumentParser) -> None:
    _add_directory(parser)
    parser.add_argument("--conf", metavar="FILE", nargs="?", const="", help="also write a network (see above)")
    subnets = parser.add_mutually_exclusive_group()
    subnets.add_argument(
        "--subnet", metavar="CIDR", action="append", default=[], help="the pods' addresses, for --conf"
    )
    subnets.add_argument("--node", metavar="FILE", help="the file of the Node object (JSON) that has the podCIDRs")
    force = "overwrite an existing file, keeping a copy FILE.podwire-backup, and change addresses while pods run"
    parser.add_argument("--force", action="store_true", help=force)


def _install(context: Context, options: Namespace) -> ExitStatus:
    skel.block_signals()
    directory = _directory(context, options)
    content = _content(options)
    path = os.path.abspath(
        os.path.join(conf_dir(context, options), os.path.basename(options.conf or default_network.FILE))
    )
    change = None
    if content is not None:
        change = renumbering.find(networks.parse(content, path), os.path.dirname(path), layers(context, options))
        if not options.force:
            _refuse_overwriting(directory, path, content)
            if change:
                change.refuse_with_pods()
    try:
        directory.install(_PROGRAM)
        if content is not None:
            _configure(directory, path, content)
    finally:
        _print_actions(context, directory)
    if change:
        context.out.print(f"{change}{_advice(change, options)}")
    if content is not None:
        for line in range_conflicts.find(networks.parse(content, path), os.path.dirname(path), context.env):
            context.out.print(f"warning: {line}")
    tool = os.path.join(directory.path, "podwire")
    paths = (os.path.join(one, "podwire") for one in os.get_exec_path(dict(context.env)))
    if not (directory.dry_run or any(os.access(one, os.X_OK) for one in paths)):
        context.out.print(f"the tool is not on PATH yet: ln -s {tool} {_LINK_DIR}/")
    written_to = os.path.dirname(path) if content is not None else ""
    for runtime in runtimes.list_installed(context.env):
        for line in _about(runtime, directory, written_to):
            context.out.print(line)
    return ExitStatus.FINE


def _advice(change: RangeChange, options: Namespace) -> str:
    """Returns the command that reports the old gateway on the bridge, "" if the networks share no bridge."""
    if not change.bridges:
        return ""
    directory = f" --conf-dir {quote(options.conf_dir)}" if options.conf_dir else ""
    return f"; to see whether the bridge still has the old gateway: podwire doctor {quote(change.name)}{directory}"


def _about(runtime: Runtime, directory: Directory, written_to: str) -> Iterator[str]:
    """Yields the directory from which a runtime runs plugins, and the command that installs there if it differs.

    `written_to` is the directory into which a network was written, "" if none was.
    """
    if runtime.problem:
        yield f"{runtime.name}: its plugin directories are unknown: {runtime.problem.msg}"
        return
    if runtime.without_cni:
        yield f"{runtime.name} runs no CNI plugins: {runtime.without_cni}"
        return
    place = runtime.install_dir(directory.names)
    source = f" ({runtime.source})" if runtime.source else ""
    if os.path.realpath(place) == os.path.realpath(directory.path):
        yield f"{runtime.name} runs the plugins in {place}{source}"
    elif Directory(place, directory.names).is_current(_PROGRAM):
        yield f"{runtime.name} runs the plugins in {place}{source}, which are also this podwire"
    else:
        command = f"podwire install --bin-dir {quote(place)}"
        where = f"in {place}{source}, not in {directory.path}"
        yield f"{runtime.name} runs the plugins {where}; to install there: {command}"
    if written_to and os.path.realpath(runtime.conf_dir) != os.path.realpath(written_to):
        option = f"--conf-dir {quote(runtime.conf_dir)}"
        yield f"{runtime.name} reads networks from {runtime.conf_dir}: repeat this command with {option}"


def _uninstall(context: Context, options: Namespace) -> ExitStatus:
    skel.block_signals()
    directory = _directory(context, options)
    if not (options.force or directory.dry_run):
        _refuse_with_pods(directory, layers(context, options))
    try:
        links = _links(context, directory)
        directory.uninstall(_PROGRAM)
        directory.remove_links(links)
    finally:
        _print_actions(context, directory)
    if number := _count_dependent_pods(directory, layers(context, options)):
        text = "their DEL fails until plugins are installed in this directory again"
        context.out.print(f"{plural(number, 'attachment')} may be running, and {text}")
    for path in dict.fromkeys(map(os.path.realpath, (BIN_DIR, *runtimes.list_bin_dirs(context.env)))):
        if path != os.path.realpath(directory.path) and Directory(path, directory.names).has_installed(_PROGRAM):
            tool = quote(os.path.join(path, "podwire"))
            fix = PACKAGE_FIX if is_packaged(path, directory.names) else f"{tool} uninstall --bin-dir {quote(path)}"
            context.out.print(f"podwire is also in {path}; to remove it there: {fix}")
    return ExitStatus.FINE


def _refuse_with_pods(directory: Directory, caches: Sequence[Layer]) -> None:
    """Raises CniError(5) if an attachment that may be running would have no plugin for its DEL."""
    planned = Directory(directory.path, directory.names, dry_run=True)
    planned.uninstall(_PROGRAM)
    if number := _count_dependent_pods(planned, caches):
        text = f"{plural(number, 'attachment')} may be running, and {directory.path} has no other plugins for their DEL"
        hint = "delete their pods first (to list them: podwire show), or install other plugins afterwards: --force"
        raise CniError(Code.IO_FAILURE, text, hint)


def _count_dependent_pods(directory: Directory, caches: Sequence[Layer]) -> int:
    """Returns the number of attachments that may be running, and of which a plugin was removed."""
    running = (one for one in attachments.list_cached(caches) if one.presence is not Presence.GONE and one.network)
    kinds = ([str(plugin["type"]) for plugin in one.network.plugins] for one in running if one.network)
    return sum(any(os.path.join(directory.path, kind) in directory.removed for kind in needed) for needed in kinds)


def _links(context: Context, directory: Directory) -> list[str]:
    """Returns the symbolic links on PATH whose target is the tool in a directory."""
    tool = os.path.join(directory.path, "podwire")
    places = [one for one in (*context.env.get("PATH", "").split(":"), _LINK_DIR) if os.path.isabs(one)]
    paths = dict.fromkeys(os.path.join(os.path.realpath(one), "podwire") for one in places)
    return [path for path in paths if path != tool and os.path.islink(path) and _target(path) == tool]


def _target(link: str) -> str:
    return os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))


def _directory(context: Context, options: Namespace) -> Directory:
    return Directory(os.path.abspath(options.bin_dir), (*sorted(context.plugins), "podwire"), options.dry_run)


def _print_actions(context: Context, directory: Directory) -> None:
    for line in directory.actions:
        if directory.dry_run:
            verb, _, rest = line.partition(" ")
            context.out.print(f"dry run: {_INFINITIVES.get(verb, verb)} {rest}")
        else:
            context.out.print(line)


def _content(options: Namespace) -> bytes | None:
    """Returns the content of the network file to write, None without --conf; raises CniError."""
    subnets = pod_cidrs.read(options.node) if options.node else options.subnet
    if options.conf is None:
        if subnets:
            option = "--node" if options.node else "--subnet"
            raise UsageError(
                Code.INVALID_NETWORK_CONFIG,
                f"{option} has no effect without --conf",
                f"add --conf, or leave out {option}",
            )
        return None
    if not options.conf:
        return _with_subnets(default_network.STANDARD, subnets, options)
    if not options.conf.endswith(networks.SUFFIXES):
        hint = f"runtimes read files that end in {', '.join(networks.SUFFIXES)}: rename the file"
        raise UsageError(Code.INVALID_NETWORK_CONFIG, f"no runtime would read {options.conf}", hint)
    try:
        content = files.read(options.conf, gojson.MAX_BYTES)
        network = positions.loads(content)
    except OSError as error:
        raise filesystem_error(f"read {options.conf}", error) from error
    except ValueError as error:
        raise CniError(Code.DECODING_FAILURE, f"{options.conf}: {error}") from error
    return _with_subnets(network, subnets, options) if subnets and isinstance(network, dict) else content


def _with_subnets(network: Mapping[str, object], subnets: Sequence[str], options: Namespace) -> bytes:
    """Returns the file of a network; raises UsageError for an invalid subnet on the command line."""
    try:
        return default_network.render(network, subnets)
    except default_network.SubnetError as error:
        if options.node:
            raise
        raise UsageError(error.code, error.msg, error.details) from error


def _refuse_overwriting(directory: Directory, path: str, content: bytes) -> None:
    """Refuses a file under this name that podwire did not write or that was changed, before changing anything."""
    existing = _read_existing(path)
    if existing is not None and existing != content and not _is_ours(directory.manifest(), path, existing):
        hint = "compare the two files; --force overwrites the existing one, and keeps a copy"
        raise CniError(Code.IO_FAILURE, f"{path} exists and is different", hint)


def _read_existing(path: str) -> bytes | None:
    """Returns the content of an existing file, None if there is none; raises CniError(5)."""
    try:
        return files.read(path, gojson.MAX_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CniError(Code.IO_FAILURE, f"cannot read {path}: {error}") from error


def _is_ours(manifest: Manifest, path: str, content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == manifest.conf.get(path)


def _configure(directory: Directory, path: str, content: bytes) -> None:
    try:
        if directory.dry_run:
            same = _read_existing(path) == content
            directory.actions.append(_same(path) if same else f"wrote {path}")
            return
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with directory.locked():
            directory.actions.append(_written(directory, path, content))
    except OSError as error:
        raise filesystem_error(f"write {path}", error) from error


def _written(directory: Directory, path: str, content: bytes) -> str:
    """Writes the network, keeping a copy of a file that podwire did not write; returns what was done."""
    manifest, existing, action = directory.manifest(), _read_existing(path), f"wrote {path}"
    if existing == content:
        action = _same(path)
    else:
        if existing is not None and not _is_ours(manifest, path, existing):
            backup = _backup(path)
            write_atomically(backup, existing, stat.S_IMODE(os.stat(path).st_mode))
            action += f"; the previous file is {backup}"
        write_atomically(path, content)
    # After the file: if this process is killed in between, the next installation sees equal content and records it.
    if not _is_ours(manifest, path, content):
        directory.note(Manifest(manifest.ours, {**manifest.conf, path: hashlib.sha256(content).hexdigest()}))
    return action


def _same(path: str) -> str:
    return f"nothing to do: {path} already has this content"


def _backup(path: str) -> str:
    """Returns a free name for a copy, with no suffix that a runtime reads."""
    number, backup = 1, f"{path}.podwire-backup"
    while os.path.lexists(backup):
        number += 1
        backup = f"{path}.podwire-backup~{number}"
    return backup


INSTALL = Command(
    "install",
    "install this file under the names of all its plugins",
    _INSTALL,
    _install,
    _add_install,
    (
        ("podwire install", f"into {BIN_DIR}"),
        ("podwire install --conf --subnet 10.22.0.0/16", f"also the standard network, in {CONF_DIR}"),
        (
            "podwire install --conf --node node.json",
            "also the standard network, with the podCIDRs of a Kubernetes node",
        ),
        ("podwire install --bin-dir /usr/lib/cni --dry-run", "print which files would be replaced there"),
    ),
)
UNINSTALL = Command(
    "uninstall",
    "remove podwire and restore the files that install replaced",
    _UNINSTALL,
    _uninstall,
    _add_uninstall,
    (("podwire uninstall", f"from {BIN_DIR}"),),
)
