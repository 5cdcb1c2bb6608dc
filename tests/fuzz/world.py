"""A host for hostile input: new namespaces with real pods, in which plugins run inside this process.

One rule: no case can affect the machine: all file systems but a few private ones are read-only, and the network is a
new namespace of the real kernel.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cni import conf as cni_conf
from cni import skel
from cni.errors import CniError
from cni.result import from_json
from kernel import link, rtnl, system
from kernel.codec import LinkMessage
from kernel.codec_netfilter import RuleMessage
from kernel.netfilter import nft
from kernel.system import System
from podwire.main import PLUGINS
from tests.fuzz.cases import Case
from tests.support import binaries, pod_interfaces, private_host
from tests.support.invocation import strict_json
from tests.support.namespaces import Namespace
from tests.support.processes import output
from tests.support.streams import MemoryStdin

HOME = Path("/run/fuzz")
LEASES, RESULTS, TUNING = HOME / "leases", Path("/var/lib/cni/results"), HOME / "tuning"
DEVICES = HOME / "devices"
_PROGRAMS = binaries.directory()  # before this process changes its directory
_HANG_S = 60.0
_PEAK_KIB = 100 << 10
_SETTABLE = 0x100 | 0x200  # IFF_PROMISC, IFF_ALLMULTI
_GETRULE = 10 << 8 | 7  # NFT_MSG_GETRULE


class FaultError(AssertionError):
    """A plugin did something that it must never do."""


def enter() -> World:
    """Moves this process into new namespaces and returns the host there."""
    host = private_host.enter("/var/lib/cni")
    for mounted in ("/", "/dev", "/sys"):
        output("mount", "-o", "remount,bind,ro", mounted)
    (HOME / "bin").mkdir(parents=True)
    for delegate in ("host-local", "static"):
        (HOME / "bin" / delegate).symlink_to("/proc/self/exe")
    os.chdir(HOME)
    for pod in ("pod", "chained"):
        output("ip", "netns", "add", pod)
    for namespace in (host, Namespace("pod"), Namespace("chained")):
        namespace.set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    chained = Namespace("chained")
    chained.ip("link", "add", "eth0", "type", "veth", "peer", "name", "h0", "netns", "host")
    chained.ip("link", "set", "eth0", "up")
    chained.ip("addr", "add", "10.1.2.5/24", "dev", "eth0")
    host.ip("link", "set", "h0", "up")
    pod_interfaces.create_objects(host, 1)
    return World(host, Namespace("pod"), chained)


def _same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Returns whether nothing was leaked; any verb may remove the empty reservation of an earlier crash."""
    return {**before, "leases": None} == {**after, "leases": None} and not set(after["leases"]) - set(before["leases"])


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*"))


def _leases(directory: Path) -> list[str]:
    """Returns the names of all reservations below a directory."""
    addresses = []
    for path in directory.rglob("*"):
        with contextlib.suppress(ValueError):
            addresses.append(str(ip_address(path.name)))
    return sorted(addresses)


_failures: list[BaseException] = []
_as_cni_error = skel.as_cni_error


def _record_failure(error: BaseException) -> CniError:
    """Converts an exception as skel does, and stores it for its traceback."""
    _failures.append(error)
    return _as_cni_error(error)


skel.as_cni_error = _record_failure


def invoke(case: Case) -> tuple[str, bytes]:
    """Runs one invocation; returns "done" or the error's code, and stdout; raises FaultError for an invalid answer."""
    stdout, captured, stderr = io.BytesIO(), io.StringIO(), sys.stderr
    sys.stderr = captured
    _failures.clear()
    try:
        status = skel.run(
            PLUGINS[case.plugin],
            case.env,
            MemoryStdin(case.stdin.encode("latin-1")),
            stdout,
            about="",
            delegates=PLUGINS,
        )
    except BaseException as error:
        raise FaultError(f"{type(error).__name__} escaped: {error}") from error
    finally:
        sys.stderr = stderr
        with contextlib.suppress(ChildProcessError):  # the children that a plugin left in the background
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    return verdict(status, stdout.getvalue(), captured.getvalue(), case), stdout.getvalue()


def verdict(status: int, stdout: bytes, stderr: str, case: Case) -> str:
    """Returns "done", or the code of the error object; raises FaultError for any other answer."""
    if "Traceback" in stderr:
        raise FaultError(f"a traceback: {stderr}")
    if status == 0:
        command = case.env.get("CNI_COMMAND")
        if command in ("ADD", "VERSION"):
            if not isinstance(_document(stdout), dict):
                raise FaultError(f"no object on stdout: {stdout!r}")
        elif stdout:
            raise FaultError(f"{command} printed {stdout!r}")
        return "done"
    body = _document(stdout)
    if status != 1 or not isinstance(body, dict) or not body.keys() <= {"cniVersion", "code", "msg", "details"}:
        raise FaultError(f"exit status {status}, stdout {stdout!r}")
    code, msg = body.get("code"), body.get("msg")
    if type(code) is not int or code <= 0 or not isinstance(msg, str) or not msg or body.get("details", "x") == "":
        raise FaultError(f"an invalid error object: {body}")
    if "defect of podwire" in body.get("details", ""):
        raise FaultError(f"a defect: {msg}") from (_failures[-1] if _failures else None)
    return f"code {code}"


def _document(stdout: bytes) -> Any:
    try:
        return strict_json(stdout)
    except (AssertionError, ValueError) as error:
        raise FaultError(f"stdout is no JSON document ({error}): {stdout!r}") from error


def _check_result(stdout: bytes, case: Case) -> None:
    """Parses the result as the next plugin does; raises FaultError."""
    body = _document(stdout)
    conf = cni_conf.parse(case.stdin.encode("latin-1"))
    try:
        from_json(body, conf.version)
    except CniError as error:
        raise FaultError(f"the result cannot be read: {error}: {stdout!r}") from error
    if body.get("cniVersion") != conf.version:
        raise FaultError(f"the result of a configuration of {conf.version} says {body.get('cniVersion')}")


def execute(case: Case) -> tuple[str, bytes]:
    """As `invoke`, but runs the built plugin in another process."""
    env = {name: value.replace("\0", "?") for name, value in case.env.items()}
    with (HOME / "stdin").open("w+b") as stdin:
        stdin.write(case.stdin.encode("latin-1"))
        stdin.seek(0)
        process = subprocess.Popen(
            [_PROGRAMS / case.plugin], env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    stdout, stderr = process.communicate(timeout=_HANG_S)
    answer = verdict(process.returncode, stdout, stderr.decode("utf-8", "replace"), case), stdout
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    if peak_kib > _PEAK_KIB:
        raise FaultError(f"{peak_kib} KiB of memory were resident")
    return answer


class HostSystem(System):
    """The running system, on which sockets are closed without a delay: thousands of cases would leave as many."""

    def close_in_background(self, descriptor: int, ended: int, delay_us: int) -> int:
        """Starts a child process that closes a socket when the other end of `ended` is closed."""
        return super().close_in_background(descriptor, ended, 0)


class World:
    """The host and its pods, with sockets to read their state."""

    def __init__(self, *namespaces: Namespace) -> None:
        self._links = []
        for namespace in namespaces:
            with namespace.entered():
                self._links.append(rtnl.Socket())
        self._rules = nft.open_socket()

    def judge(self, case: Case, invoke: Callable[[Case], tuple[str, bytes]] = invoke) -> str:
        """Runs a case, deletes what it attached; returns the verdict, "done" or "code N"; FaultError for remains."""
        self._create_files(case.files)
        with system.replaced(HostSystem()):
            if case.env.get("CNI_COMMAND") == "ADD":
                verdict = self._judge_add(case, invoke)
            else:
                verdict, _ = invoke(case)
        self._remove_files(case.files)
        return verdict

    def _judge_add(self, case: Case, invoke: Callable[[Case], tuple[str, bytes]]) -> str:
        before = self._state()
        verdict, stdout = invoke(case)
        if verdict == "done":
            _check_result(stdout, case)
            deletion = Case(case.plugin, {**case.env, "CNI_COMMAND": "DEL"}, case.stdin)
            deletion_verdict, error = invoke(deletion)
            if deletion_verdict != "done":
                raise FaultError(f"DEL after ADD: {error.decode()}")
            self._delete_bridges(before)
            if (devices := _names(DEVICES)) != before["devices"]:
                raise FaultError(f"DEL after ADD left {devices}")
            if (attributes := self._attributes()) != before["attributes"]:
                raise FaultError(f"DEL after ADD left {attributes}, not {before['attributes']}")
        elif not _same(before, after := self._state()):
            self._delete_bridges(before)
            left = "; ".join(f"{key}: {before[key]} -> {after[key]}" for key in before if before[key] != after[key])
            raise FaultError(f"a failed ADD ({stdout.decode()}) left {left}")
        return verdict

    def _create_files(self, files: dict[str, str | None]) -> None:
        for path, content in files.items():
            with contextlib.suppress(OSError, ValueError):  # an impossible name
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if content is None:
                    os.makedirs(path)
                else:
                    Path(path).write_bytes(content.encode("latin-1"))

    def _remove_files(self, files: dict[str, str | None]) -> None:
        if files or LEASES.exists():
            for directory in (LEASES, Path(f"{LEASES}.podwire"), RESULTS):
                shutil.rmtree(directory, ignore_errors=True)

    def _state(self) -> dict[str, Any]:
        links = [
            sorted(
                message.get_attr("IFLA_IFNAME")
                for message in namespace_socket.dump(rtnl.Request("", LinkMessage, link.RTM_GETLINK, rtnl.NLM_F_DUMP))
            )
            for namespace_socket in self._links
        ]
        messages = self._rules.dump(rtnl.Request("", RuleMessage, _GETRULE, rtnl.NLM_F_DUMP))
        rules = sorted(message.get_attr("NFTA_RULE_CHAIN") for message in messages)
        return {
            "links": links,
            "rules": rules,
            "leases": _leases(HOME) + _leases(Path("/var/lib/cni/networks")),
            "attributes": self._attributes(),
            "backups": _names(TUNING),
            "devices": _names(DEVICES),
        }

    def _attributes(self) -> list[Any]:
        """Returns the attributes that plugins set and restore: both ends of the chained pod's veth, and a device."""
        host, *_, chained = self._links
        ends = [
            *link.get(host, link.by_name_request("h0")),
            *link.get(host, link.by_name_request("hd0")),
            *link.get(chained, link.by_name_request("eth0")),
        ]
        return [end and (end.mac, end.mtu, end.flags & _SETTABLE) for end in ends]

    def _delete_bridges(self, before: dict[str, Any]) -> None:
        """Deletes the bridges that a case created: they outlive attachments.

        Raises FaultError for another link that does, and for a link that the host has lost.
        """
        host = self._links[0]
        known = set(before["links"][0])
        links = host.dump(rtnl.Request("", LinkMessage, link.RTM_GETLINK, rtnl.NLM_F_DUMP))
        names = {message.get_attr("IFLA_IFNAME") for message in links}
        if wrong := (known - names) | {name for name in names - known if name.startswith("pwha")}:
            raise FaultError(f"the links {wrong} are lost or left")
        created = [message["index"] for message in links if message.get_attr("IFLA_IFNAME") not in known | {"cni0"}]
        for index in created:
            with contextlib.suppress(CniError):
                host.change(rtnl.Request("", LinkMessage, link.RTM_DELLINK, rtnl.NLM_F_ACK, {"index": index}))
