"""Checks the plugins that the networks name: they exist, start, support the network's version, and are ready for ADD.

Foreign plugins are run with VERSION only, and with STATUS if the network's version has it; podwire's
plugins run in this process.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from shlex import quote

from cni import delegate, gojson, skel, versions
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.fields import Fields
from ipam.dhcp import conf as dhcp_conf
from ipam.dhcp.main import PLUGIN as DHCP
from ipam.host_local.main import PLUGIN as HOST_LOCAL
from kernel import system
from kernel.errors import KernelError
from kernel.netfilter import nft, nft_chains
from podwire.doctor.finding import UNSEEN, UNSEEN_FIX, Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.gateways import ipv6_of
from podwire.doctor.node import CheckedNode
from podwire.doctor.shell_command import ShellCommand
from podwire.networks import Network
from podwire.output import span
from podwire.programs_once import ProgramsOnce
from podwire.verbs import origin
from process import child
from process.child import ChildCommand

_GROUP = "plugins"
_LIMIT_S = 5.0
_ELF = b"\x7fELF"
_ABOUT = re.compile(r"CNI (\S+) plugin ")  # of the reference plugins and of podwire's
_MACHINE = slice(18, 20)  # e_machine (elf.h)
# The environment that libcni sets for VERSION.
_DUMMIES = {"CNI_COMMAND": "VERSION", "CNI_NETNS": "dummy", "CNI_IFNAME": "dummy", "CNI_PATH": "dummy"}

_MISSING = Fault(
    "plugin-missing",
    Severity.PROBLEM,
    "a network names a plugin that is in none of the plugin directories: each ADD fails",
)
_MODE = Fault(
    "plugin-not-executable",
    Severity.PROBLEM,
    "the file of a plugin is not executable",
)
_FOREIGN = Fault(
    "plugin-wrong-architecture",
    Severity.PROBLEM,
    "the file of a plugin is for another processor",
)
_BROKEN = Fault(
    "plugin-not-starting",
    Severity.PROBLEM,
    "a plugin does not answer VERSION: it cannot be started, or is not a CNI plugin",
)
_OTHER = Fault(
    "plugin-of-another-name",
    Severity.PROBLEM,
    "the file of a plugin is another plugin, as after a `cp` onto one of podwire's names, which are hard links",
)
_VERSION = Fault(
    "version-unknown",
    Severity.PROBLEM,
    "a plugin of a network does not support the network's cniVersion: each ADD fails",
)
_STATUS = Fault(
    "not-ready",
    Severity.PROBLEM,
    "a plugin's STATUS reports that ADD would fail: a wrong key, a missing program, kernel feature or privilege",
)


@dataclass
class _Programs:
    """The versions that the plugins support, by plugin; without those that could not be run."""

    paths: dict[str, str] = field(default_factory=dict)
    versions: dict[str, tuple[str, ...]] = field(default_factory=dict)


def _look(node: CheckedNode) -> Iterator[Finding]:
    programs = _Programs()
    users: dict[str, str] = {}
    for network in node.networks:
        for kind in network.kinds:
            users.setdefault(kind, network.path)
    for kind, user in users.items():
        yield _program(node, kind, user, programs)
    for network in node.networks:
        yield from _versions(network, programs)


def _program(node: CheckedNode, kind: str, user: str, programs: _Programs) -> Finding:
    """Runs VERSION of one plugin, adds its versions to `programs`, and returns the finding."""
    try:
        path = delegate.find(kind, node.bin_dirs)
    except CniError:
        ours = ShellCommand(f"podwire install --bin-dir {quote(node.install_dir)}")
        fix = ours if kind in node.plugins else f'install "{kind}" into {node.install_dir}, or correct "type" in {user}'
        return _MISSING.finding(kind, f"{user} needs it, but it is not in {', '.join(node.bin_dirs)}", fix)
    if os.access(path, os.F_OK) and not os.access(path, os.X_OK) and os.stat(path).st_mode & 0o111:
        return UNSEEN.finding(kind, f"{path} is not executable for this user", UNSEEN_FIX)
    if not os.access(path, os.X_OK):
        fix = ShellCommand(f"chmod 0755 {quote(path)}")
        return _MODE.finding(kind, f"{path} is not executable", fix, objects=_objects(kind))
    directory = quote(os.path.dirname(path))
    again = ShellCommand(f"podwire install --bin-dir {directory}") if kind in node.plugins else f"install {kind} again"
    if _is_foreign(path):
        text = f"{path} is for a different processor than this node's"
        return _FOREIGN.finding(kind, text, again, objects=_objects(kind))
    start = time.perf_counter()
    try:
        known = _known_versions(path)
    except CniError as error:
        return _BROKEN.finding(kind, f"{path} {error.msg}", again, objects=_objects(kind))
    if kind in node.plugins and (other := _name_in(path)) in node.plugins and other != kind:
        fix = f"delete {path}, since its other names may be the same file, and install {kind} again"
        return _OTHER.finding(kind, f"{path} is the plugin {other}", fix, objects=_objects(kind))
    programs.versions[kind] = known
    took = f"starts in {(time.perf_counter() - start) * 1000:.1f} ms"
    return ok_finding("programs", path, f"{took}, supports {span(known)}")


def _name_in(path: str) -> str:
    """Returns the name in the line that a plugin prints about itself, "" if it prints none."""
    try:
        known = _ABOUT.match(origin.about(path, os.environ))
    except (OSError, CniError):
        return ""
    return known[1] if known else ""


def _known_versions(path: str) -> tuple[str, ...]:
    """Runs VERSION and returns the supported versions; raises CniError."""
    command = ChildCommand((path,), _DUMMIES, b'{"cniVersion":"1.1.0"}', capture_stderr=True)
    try:
        (outcome,) = child.run(command, limit_s=_LIMIT_S)
    except TimeoutError:
        raise CniError(0, f"does not answer VERSION within {_LIMIT_S:.0f} s") from None
    except OSError as error:
        raise CniError(0, f"cannot be started: {error.strerror}") from error
    try:
        body = gojson.loads(outcome.stdout)
    except ValueError:
        body = None
    listed = body.get("supportedVersions") if isinstance(body, dict) else None
    if outcome.status or not isinstance(listed, list):
        stderr = outcome.stderr.decode("utf-8", "replace").strip()[:200]
        raise CniError(0, f"does not answer VERSION: {outcome.ending}{f', {stderr}' if stderr else ''}")
    return tuple(str(one) for one in listed)


def _versions(network: Network, programs: _Programs) -> Iterator[Finding]:
    kinds = network.kinds
    for kind in kinds:
        known = programs.versions.get(kind)
        if known is None or network.version in known:
            continue
        common = [
            one for one in versions.SUPPORTED if all(one in programs.versions.get(item, (one,)) for item in kinds)
        ]
        fix = f'set "cniVersion" to "{common[-1]}" in {network.path}' if common else f"install a newer {kind}"
        text = f'{network.path} has cniVersion "{network.version}", but {kind} supports only {", ".join(known)}'
        yield _VERSION.finding(network.name, text, fix)


def _status(node: CheckedNode) -> Iterator[Finding]:
    if node.networks:
        _require_privileges(node)
    with system.replaced(ProgramsOnce()):
        findings = [one for network in node.networks for one in _network_status(node, network)]
    yield from findings


def _require_privileges(node: CheckedNode) -> None:
    """Raises CniError if the plugins' STATUS would fail because of this process, not of the node."""
    if os.geteuid() != 0:
        raise CniError(Code.INVALID_ENVIRONMENT, "the plugins' STATUS needs root")
    try:
        with nft.open_socket() as socket:
            nft_chains.list_chains(socket)  # refused without CAP_NET_ADMIN
    except nft.UnavailableError:
        return
    except KernelError as error:
        if error.errno == errno.EPERM:
            raise


def _network_status(node: CheckedNode, network: Network) -> Iterator[Finding]:
    for plugin in network.plugins:
        kind = str(plugin["type"])
        subject = f"{network.name}: {kind}"
        try:
            has_status = _run_status(node, network, plugin)
        except CniError as error:
            bridges = (item.bridge for item in node.interfaces if item.network is network and item.bridge)
            behind = (*_objects(kind), *(map(ipv6_of, bridges) if kind == "bridge" else ()))
            objects = (status_object(subject),)
            yield _STATUS.finding(subject, error.msg, error.details, objects=objects, behind=behind)
        else:
            if has_status:
                yield ok_finding("status", subject, "ready")


def _run_status(node: CheckedNode, network: Network, plugin: Mapping[str, object]) -> bool:
    """Runs STATUS of a plugin; returns whether it has one, raises CniError if it is not ready.

    podwire's plugins run in this process and in a version that has STATUS, whatever the network's: ADD needs the same.
    host-local's STATUS is left out, because it writes; addresses.py checks its stores without writing. With "pool" it
    runs: nothing else checks the granted blocks. dhcp's only reads its configuration; dhcp.py checks the daemon.
    """
    kind = str(plugin["type"])
    is_known = network.version in versions.SUPPORTED  # else it may be any text, which other plugins refuse
    has_status = is_known and versions.at_least(network.version, versions.SINCE["STATUS"])
    ipam_fields = Fields(plugin).section("ipam")
    ipam = ipam_fields.string("type")
    if kind not in node.plugins or (ipam and ipam not in node.plugins):
        if has_status:
            _execute_status(node, network, plugin)
        return has_status
    args, conf = node.checker.build_call("STATUS", {**network.build_config(plugin), "cniVersion": versions.CURRENT})
    delegates = {
        **node.plugins,
        HOST_LOCAL.name: HOST_LOCAL if ipam_fields.string("pool") else replace(HOST_LOCAL, cmd_status=None),
        DHCP.name: replace(DHCP, cmd_status=_parse_dhcp),
    }
    try:
        skel.run_verb(delegates[kind], replace(args, delegates=delegates), conf)
    except Exception as error:
        raise skel.as_cni_error(error) from error
    return True


def _parse_dhcp(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the configuration of dhcp; raises CniError(7)."""
    dhcp_conf.parse(net_conf, args.args)


def _execute_status(node: CheckedNode, network: Network, plugin: Mapping[str, object]) -> None:
    try:
        path = delegate.find(str(plugin["type"]), node.bin_dirs)
    except CniError:
        return  # `_program` reports it
    env = {**node.env, "CNI_COMMAND": "STATUS", "CNI_PATH": ":".join(node.bin_dirs)}
    command = ChildCommand((path,), env, gojson.dumps(network.build_config(plugin)).encode(), capture_stderr=True)
    try:
        (outcome,) = child.run(command, limit_s=_LIMIT_S)
    except TimeoutError:
        hint = f"run {path} by hand to see what it waits for"
        raise CniError(0, f"it does not answer STATUS within {_LIMIT_S:.0f} s", hint) from None
    except OSError as error:
        raise CniError(0, f"STATUS cannot be run: {error.strerror}", f"run {path} by hand to see its error") from error
    if outcome.status:
        try:
            body = gojson.loads(outcome.stdout)
        except ValueError:
            body = None
        answer = body if isinstance(body, dict) else {}
        msg = str(answer.get("msg") or f"STATUS ended with {outcome.ending}")
        raise CniError(0, msg, str(answer.get("details") or f"run {path} by hand to see its error"))


def status_object(subject: str) -> str:
    """Returns the object of a finding about a plugin's STATUS, which also explains why its trial fails."""
    return f"STATUS of {subject}"


def _objects(kind: str) -> tuple[str, ...]:
    """Returns the object of a plugin's findings: a program that does not start has no answer to STATUS."""
    return (f"plugin {kind}",)


def _is_foreign(path: str) -> bool:
    """Returns whether a file is an ELF file for a different processor than this program's."""
    try:
        with open(path, "rb") as file, open("/proc/self/exe", "rb") as exe:
            head, ours = file.read(20), exe.read(20)
    except OSError:
        return False
    return head.startswith(_ELF) and head[_MACHINE] != ours[_MACHINE]


CHECKS = (
    Check(
        _GROUP, "programs", "no network names a plugin", _look, (_MISSING, _MODE, _FOREIGN, _BROKEN, _OTHER, _VERSION)
    ),
    Check(_GROUP, "status", "no plugin was run with STATUS", _status, (_STATUS,)),
)
