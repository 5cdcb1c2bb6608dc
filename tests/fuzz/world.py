"""A host for hostile input: private namespaces with real pods, where plugins run inside this process.

One rule: whatever a case makes a plugin do, nothing outside is touched: every file system but a few private ones is
read-only here, and the network is the kernel's own but nobody else's.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import kernel.link_deletion
import kernel.netfilter.nft
import kernel.netns
import kernel.sysctl
import process.child
from cni import conf as cni_conf
from cni import skel
from cni.errors import CniError
from cni.result import from_json
from kernel import link, rtnl
from kernel.codec import LinkMessage
from kernel.codec_netfilter import RuleMessage
from podwire.main import PLUGINS
from process.child import Command, Outcome
from tests.fuzz.cases import Case
from tests.support import binaries, private_host
from tests.support.invocation import strict_json
from tests.support.namespaces import Namespace
from tests.support.processes import output

HOME = Path("/run/fuzz")
LEASES, RESULTS, TUNING = HOME / "leases", Path("/var/lib/cni/results"), HOME / "tuning"
_PROGRAMS = binaries.directory()  # before we are elsewhere
_HANG_S = 20.0
_PEAK_KIB = 100 << 10
_SETTABLE = 0x100 | 0x200  # IFF_PROMISC, IFF_ALLMULTI
_GETRULE = 10 << 8 | 7  # NFT_MSG_GETRULE


class FaultError(AssertionError):
    """What a plugin must never do."""


def enter() -> World:
    """Moves this process into a world of its own."""
    host = private_host.enter("/var/lib/cni")
    for mounted in ("/", "/dev", "/sys"):
        output("mount", "-o", "remount,bind,ro", mounted)
    (HOME / "bin").mkdir(parents=True)
    for delegate in ("host-local", "static"):
        (HOME / "bin" / delegate).symlink_to("/proc/self/exe")
    os.chdir(HOME)
    for pod in ("pod", "chained"):
        output("ip", "netns", "add", pod)
    for inside in (host, Namespace("pod"), Namespace("chained")):
        inside.set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    chained = Namespace("chained")
    chained.ip("link", "add", "eth0", "type", "veth", "peer", "name", "h0", "netns", "host")
    chained.ip("link", "set", "eth0", "up")
    chained.ip("addr", "add", "10.1.2.5/24", "dev", "eth0")
    host.ip("link", "set", "h0", "up")
    kernel.netfilter.nft._FREED_AFTER_US = 0
    return World(host, Namespace("pod"), chained)


def _same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Tells whether nothing was left; what a crash left (an empty reservation) may be taken away by anybody."""
    return {**before, "leases": None} == {**after, "leases": None} and not set(after["leases"]) - set(before["leases"])


def _deletion(index: int) -> rtnl.Request:
    return rtnl.Request("", LinkMessage, link.RTM_DELLINK, rtnl.NLM_F_ACK, {"index": index})


def leases(directory: Path) -> list[str]:
    """Returns the names of all reservations below a directory."""
    found = []
    for _, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(ValueError):
                found.append(str(ip_address(name)))
    return sorted(found)


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    return "; ".join(f"{key}: {before[key]} -> {after[key]}" for key in before if before[key] != after[key])


_failures: list[BaseException] = []
_as_cni_error = skel.as_cni_error


def _noted(error: BaseException) -> CniError:
    """Returns what skel makes of an exception, which is kept to tell where it came from."""
    _failures.append(error)
    return _as_cni_error(error)


skel.as_cni_error = _noted


def invoke(case: Case) -> tuple[str, bytes]:
    """Runs one invocation; returns "done" or the error's code, and stdout; raises FaultError for a wrong answer."""
    stdout, said, stderr = io.BytesIO(), io.StringIO(), sys.stderr
    sys.stderr = said
    _failures.clear()
    try:
        status = skel.run(
            PLUGINS[case.plugin],
            case.env,
            io.BytesIO(case.stdin.encode("latin-1")),
            stdout,
            about="",
            delegates=PLUGINS,
        )
    except BaseException as error:
        raise FaultError(f"{type(error).__name__} escaped: {error}") from error
    finally:
        sys.stderr = stderr
        reap()
    return verdict(status, stdout.getvalue(), said.getvalue(), case), stdout.getvalue()


def verdict(status: int, stdout: bytes, stderr: str, case: Case) -> str:
    """Returns "done", or the code of the error object; raises FaultError for what is neither."""
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
        raise FaultError(f"a wrong error object: {body}")
    if "defect of podwire" in body.get("details", ""):
        raise FaultError(f"a defect: {msg}") from (_failures[-1] if _failures else None)
    return f"code {code}"


def _document(stdout: bytes) -> Any:
    try:
        return strict_json(stdout)
    except (AssertionError, ValueError) as error:
        raise FaultError(f"stdout is no JSON document ({error}): {stdout!r}") from error


def _check_result(stdout: bytes, case: Case) -> None:
    """Reads the result as the next plugin would."""
    body = _document(stdout)
    own = cni_conf.parse(case.stdin.encode("latin-1"))
    try:
        from_json(body, own.version)
    except CniError as error:
        raise FaultError(f"the result cannot be read: {error}: {stdout!r}") from error
    if body.get("cniVersion") != own.version:
        raise FaultError(f"the result of a configuration of {own.version} says {body.get('cniVersion')}")


def execute(case: Case) -> tuple[str, bytes]:
    """As `invoke`, with the built file of the plugin as a process of its own."""
    env = {name: value.replace("\0", "?") for name, value in case.env.items()}
    with (HOME / "stdin").open("w+b") as stdin:
        stdin.write(case.stdin.encode("latin-1"))
        stdin.seek(0)
        process = subprocess.Popen(
            [_PROGRAMS / case.plugin], env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    stdout, stderr = process.communicate(timeout=_HANG_S)
    told = verdict(process.returncode, stdout, stderr.decode("utf-8", "replace"), case), stdout
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    if peak_kib > _PEAK_KIB:
        raise FaultError(f"{peak_kib} KiB of memory were resident")
    return told


def reap() -> None:
    """Waits for the children that a plugin leaves to end by themselves, and have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class World:
    """The host and its pods, with sockets to look at them."""

    def __init__(self, *namespaces: Namespace) -> None:
        self._links = []
        for namespace in namespaces:
            with namespace.entered():
                self._links.append(rtnl.Socket())
        self._rules = kernel.netfilter.nft.open_socket()

    def judge(self, case: Case, invoke: Callable[[Case], tuple[str, bytes]] = invoke) -> str:
        """Runs a case and returns what came of it in a word or two; raises FaultError.

        What has been added is deleted again; what could not be added must have left nothing.
        """
        self._make(case.files)
        adding = case.env.get("CNI_COMMAND") == "ADD"
        before = self._state() if adding else None
        verdict, stdout = invoke(case)
        if adding:
            if verdict == "done":
                _check_result(stdout, case)
                deletion = Case(case.plugin, {**case.env, "CNI_COMMAND": "DEL"}, case.stdin)
                undone, told = invoke(deletion)
                if undone != "done":
                    raise FaultError(f"DEL after ADD: {told.decode()}")
                self._tidy(before)
                if (own := self._attributes()) != before["attributes"]:
                    raise FaultError(f"DEL after ADD left {own}, not {before['attributes']}")
            elif not _same(before, after := self._state()):
                self._tidy(before)
                raise FaultError(f"a failed ADD ({stdout.decode()}) left {_difference(before, after)}")
        self._clear(case.files)
        return verdict

    def _make(self, files: dict[str, str | None]) -> None:
        for path, content in files.items():
            with contextlib.suppress(OSError, ValueError):  # a name that cannot be
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if content is None:
                    os.makedirs(path)
                else:
                    Path(path).write_bytes(content.encode("latin-1"))

    def _clear(self, files: dict[str, str | None]) -> None:
        if files or LEASES.exists():
            for directory in (LEASES, Path(f"{LEASES}.podwire"), RESULTS):
                shutil.rmtree(directory, ignore_errors=True)

    def _state(self) -> dict[str, Any]:
        links = [
            sorted(
                message.get_attr("IFLA_IFNAME")
                for message in own.dump(rtnl.Request("", LinkMessage, link.RTM_GETLINK, rtnl.NLM_F_DUMP))
            )
            for own in self._links
        ]
        found = self._rules.dump(rtnl.Request("", RuleMessage, _GETRULE, rtnl.NLM_F_DUMP))
        rules = sorted(message.get_attr("NFTA_RULE_CHAIN") for message in found)
        return {
            "links": links,
            "rules": rules,
            "leases": leases(HOME) + leases(Path("/var/lib/cni/networks")),
            "attributes": self._attributes(),
            "backups": sorted(path.name for path in TUNING.glob("*")),
        }

    def _attributes(self) -> list[Any]:
        """Returns what tuning sets, and puts back: of both ends of the chained pod's pair."""
        host, *_, chained = self._links
        ends = [*link.get(host, link.by_name_request("h0")), *link.get(chained, link.by_name_request("eth0"))]
        return [end and (end.mac, end.mtu, end.flags & _SETTABLE) for end in ends]

    def _tidy(self, before: dict[str, Any]) -> None:
        """Takes away what outlives an attachment: bridges of odd names."""
        own = self._links[0]
        known = set(before["links"][0])
        listing = own.dump(rtnl.Request("", LinkMessage, link.RTM_GETLINK, rtnl.NLM_F_DUMP))
        made = [message["index"] for message in listing if message.get_attr("IFLA_IFNAME") not in known | {"cni0"}]
        for index in made:
            with contextlib.suppress(CniError):
                own.change(_deletion(index))


class Prompter:
    """Answers for the kernel and for programs: what was recorded, as the case has it, each answer once."""

    def __init__(self) -> None:
        self.replies: list[Any] = []

    def judge(self, case: Case) -> str:
        """Runs a case on its replies."""
        self.replies = list(reversed(case.replies))
        return invoke(case)[0]

    def next(self, kind: type) -> Any:
        """Returns the next answer; when there is none of that kind, what the kernel says when answers were lost."""
        if self.replies and isinstance(self.replies[-1], kind):
            return self.replies.pop()
        raise OSError(105, "No buffer space available")


def pretend(prompter: Prompter) -> Callable[[], None]:
    """Puts the prompter in the kernel's place in this process."""

    class Answering(socket.socket):
        """Takes any request and returns what is next."""

        def __init__(self, *unused: int) -> None:
            super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)

        def setsockopt(self, *unused: int) -> None:  # type: ignore[override]
            """Takes any option."""

        def bind(self, address: object) -> None:
            """Takes any address."""

        def send(self, data: bytes) -> int:  # type: ignore[override]
            """Takes any request."""
            return len(data)

        def recv(self, size: int, flags: int = 0) -> bytes:  # type: ignore[override]
            """Returns the next answer."""
            if flags:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            data: bytes = prompter.next(str).encode("latin-1")
            return data

    def restore(*commands: Command, **unused: object) -> list[Outcome]:
        answers = [prompter.next(list) for _ in commands]
        return [Outcome(status, text.encode("latin-1"), b"") for status, text in answers]

    def readable(descriptors: list[int], timeout_s: float) -> list[int]:
        return descriptors[-1:] if prompter.replies else []

    parameters = HOME / "parameter"
    parameters.write_text("1")
    props: list[tuple[Any, str, Any]] = [
        (socket, "socket", Answering),
        (process.child, "run", restore),
        (kernel.netns, "setns", lambda descriptor, kind: None),
        (rtnl, "wait_readable", readable),
        (kernel.link_deletion, "wait_readable", readable),
        (kernel.sysctl, "_ROOT", _Parameter(parameters)),
        (kernel.link_deletion, "send_in_background", lambda socket, request, report: 1 << 22),
        (kernel.netfilter.nft, "close_in_background", lambda socket, ended, microseconds: 1 << 22),
        (os, "urandom", bytes),
    ]
    real = [(place, name, getattr(place, name)) for place, name, _ in props]
    for place, name, prop in props:
        setattr(place, name, prop)

    def end() -> None:
        for place, name, thing in real:
            setattr(place, name, thing)

    return end


class _Parameter(str):
    """A directory in which every name is the same file: one stands for all kernel parameters."""

    __slots__ = ()

    def __add__(self, name: str) -> str:
        return str(self)
