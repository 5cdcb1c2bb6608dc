"""The log: one line of JSON for each verb, for who looks for the reason afterwards.

One rule: the log never decides: what cannot be logged is told on stderr, and the verb's result and exit status are the
same. Off by default, and then it costs no system call.

It is switched on by the environment, or for a network by keys of its configuration; the environment wins:

    PODWIRE_LOG, logFile           a file's absolute path, "stderr", or "journald" (its native protocol)
    PODWIRE_LOG_LEVEL, logLevel    "error": verbs that fail; "info" (the default): every verb; "debug": with its steps
                                   and the changes that it made

- VERSION is not logged. What runs inside this process (host-local, mostly) is a step of who called it; a delegate in a
  process of its own writes its own line.
- A line is made of what is known by name. What anybody may have put into CNI_ARGS, into unknown keys or into the
  environment is not in it; an error that quotes a pair of CNI_ARGS is told without its value.
- A line has less than LINE_BYTES. What is longer is cut: texts end with "...", lists with how many more there were.
- A file is opened for each verb and appended to by one write, so that lines of several verbs do not mix, and one that
  was renamed (logrotate) is made anew, in mode 0600. Its directory is not. A link is not followed, and what is no file
  is not written to: a FIFO without a reader would hang.
- The W3C trace context (TRACEPARENT) is noted, and as all variables are, it is passed on to delegates.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from cni import gojson
from cni.conf import NetConf
from cni.errors import CniError
from cni.result import Result
from process import record
from process.record import Record
from process.stderr import one_line

LEVELS = ("error", "info", "debug")
JOURNAL = "/run/systemd/journal/socket"
LINE_BYTES = 64 << 10
_ID_BYTES, _MESSAGE_BYTES = 512, 8 << 10
_CHANGES_BYTES, _STEPS_BYTES, _IPS_BYTES = 28 << 10, 6 << 10, 4 << 10
_STDERR, _JOURNALD = "stderr", "journald"
_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NOT_FOLLOWED = nullcontext()
_IN_MEMORY = ("overlay", "ramfs", "rootfs", "tmpfs")
_ARGS_SHOWN = (
    "IgnoreUnknown",
    "IP",
    "MAC",
    "K8S_POD_NAMESPACE",
    "K8S_POD_NAME",
    "K8S_POD_INFRA_CONTAINER_ID",
    "K8S_POD_UID",
)
_TRACE = re.compile(r"(?!ff|00-.{53})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")

Line = dict[str, object]


class Log:
    """The log of one verb of `plugin`, whose release is `version`; `env` is what the runtime has set."""

    def __init__(self, plugin: str, version: str, env: Mapping[str, str]) -> None:
        self._plugin, self._version, self._env = plugin, version, env
        self._target = env.get("PODWIRE_LOG", "")
        self._level = env.get("PODWIRE_LOG_LEVEL", "") if self._target else ""
        self._conf: NetConf | None = None
        self._record: Record | None = None
        self._start_ns = time.perf_counter_ns()

    def following(self, conf: NetConf) -> AbstractContextManager[object]:
        """Notes what the block changes, and its steps, where that is asked for here or by the configuration."""
        self._conf = conf
        if not self._target and conf.fields.has("logFile"):
            self._target, self._level = _key(conf, "logFile"), self._env.get("PODWIRE_LOG_LEVEL", "")
        if not self._target:
            return _NOT_FOLLOWED
        if not self._level and conf.fields.has("logLevel"):
            self._level = _key(conf, "logLevel")
        return self._recorded() if self._level == "debug" else _NOT_FOLLOWED

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        with record.recording() as self._record:
            yield

    def write(self, result: Result | None = None, failure: CniError | None = None) -> None:
        """Writes the line, when it is asked for. Whatever becomes of it, the verb's end is the same."""
        if not self._target or self._env.get("CNI_COMMAND") == "VERSION":
            return
        try:
            if self._level not in ("", *LEVELS):
                _note(f'the level must be one of {", ".join(LEVELS)}, not "{self._level}"; it is taken for "info"')
            if failure or self._level != "error":
                self._write(self._line(result, failure))
        except Exception as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            _note(f"nothing is written to {self._target}: {why}")

    def _line(self, result: Result | None, failure: CniError | None) -> Line:
        ms = (time.perf_counter_ns() - self._start_ns) / 1e6
        return line(self._plugin, self._version, self._env, self._conf, ms, result, failure, self._record)

    def _write(self, body: Line) -> None:
        if self._target == _JOURNALD:
            _send(_datagram(body))
            return
        text = gojson.dumps(body)
        if self._target == _STDERR:
            if sys.stderr is not None:
                print(text, file=sys.stderr)
        else:
            _append(self._target, f"{text}\n".encode("utf-8", "replace"))


def line(
    plugin: str,
    version: str,
    env: Mapping[str, str],
    conf: NetConf | None,
    ms: float,
    result: Result | None = None,
    failure: CniError | None = None,
    noted: Record | None = None,
) -> Line:
    """Returns what the log says of a verb that ended just now, after `ms`; what is not known is left out."""
    trace = _TRACE.fullmatch(env.get("TRACEPARENT", ""))
    ids = {
        "time": _now(),
        "level": "error" if failure else "info",
        "plugin": plugin,
        "version": version,
        "pid": os.getpid(),
        "command": env.get("CNI_COMMAND"),
        "network": conf and conf.name,
        "containerID": env.get("CNI_CONTAINERID"),
        "ifname": env.get("CNI_IFNAME"),
        "netns": env.get("CNI_NETNS"),
        "pod": _pod(env),
        "cniVersion": conf and conf.version,
        "traceID": trace and trace[1],
        "parentID": trace and trace[2],
    }
    known = {key: value for key, value in ids.items() if value}
    body: Line = {key: _cut(value, _ID_BYTES) if isinstance(value, str) else value for key, value in known.items()}
    body["ms"] = round(ms, 3)
    if result and result.ips:
        addresses = (str(item.address) for item in result.ips)
        body["result"] = {"ips": _fitting(addresses, len(result.ips), _IPS_BYTES)}
    if failure:
        texts = {"msg": failure.msg, "details": failure.details}
        said = {key: _cut(_without_secrets(text, env), _MESSAGE_BYTES) for key, text in texts.items() if text}
        body["error"] = {"code": failure.code, **said}
    if noted and noted.steps:
        steps = ({"what": _cut(step.what, _ID_BYTES), "ms": round(step.ms, 3)} for step in noted.steps)
        body["steps"] = _fitting(steps, len(noted.steps), _STEPS_BYTES)
    if noted and noted.changes:
        body["changes"] = _fitting(noted.changes, len(noted.changes), _CHANGES_BYTES)
    return body


def _key(conf: NetConf, key: str) -> str:
    try:
        return conf.fields.string(key)
    except CniError as error:
        _note(error.msg)
        return ""


def _now() -> str:
    """Returns the time as RFC 3339 has it, in UTC."""
    seconds, ns = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ns // 1_000_000:03d}Z"


def _pieces(env: Mapping[str, str]) -> list[str]:
    return env.get("CNI_ARGS", "").split(";")


def _pod(env: Mapping[str, str]) -> str:
    """Returns the pod as Kubernetes' runtimes name it, "namespace/name", "" when they do not."""
    known = {key: value for key, _, value in (piece.partition("=") for piece in _pieces(env))}
    namespace, name = known.get("K8S_POD_NAMESPACE", ""), known.get("K8S_POD_NAME", "")
    return f"{namespace}/{name}" if namespace and name else ""


def _without_secrets(text: str, env: Mapping[str, str]) -> str:
    """Returns an error's text without what somebody has put into CNI_ARGS under names that are not known here."""
    for piece in _pieces(env):
        key, equals, _ = piece.partition("=")
        if key not in _ARGS_SHOWN:
            text = text.replace(f'"{piece}"', f'"{key}=..."' if equals else '"..."')
    return text


def _size(value: object) -> int:
    return len(gojson.dumps(value).encode("utf-8", "replace"))


def _cut(text: str, most_bytes: int) -> str:
    """Returns as much of a text as takes `most_bytes` in a line; encodes at most that many characters."""
    if len(text) * 6 + 2 <= most_bytes:  # no character takes more than six
        return text
    if len(text) <= most_bytes and _size(text) <= most_bytes:
        return text
    text = text[:most_bytes]
    while _size(text) > most_bytes - len("..."):
        text = text[: len(text) * 7 // 8]
    return text + "..."


def _fitting(items: Iterable[object], number: int, most_bytes: int) -> list[object]:
    """Returns as many of `number` items as take `most_bytes` in a line, and at the end how many more there were.

    It takes no more of `items` than it needs, so a generator builds no more.
    """
    kept: list[object] = []
    left = most_bytes - _ID_BYTES
    for item in items:
        shown = _cut(item, most_bytes // 4) if isinstance(item, str) else item
        left -= _size(shown) + 1
        if left < 0:
            return [*kept, f"and {number - len(kept)} more"]
        kept.append(shown)
    return kept


def _append(path: str, data: bytes) -> None:
    """Appends a line to a file by one write; raises OSError, ValueError."""
    if not path.startswith("/"):
        raise ValueError("it must be an absolute path, stderr or journald")
    fd = os.open(path, _OPEN, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or not _stores(fd):
            raise ValueError("it is no file")
        written = os.write(fd, data)
        if written < len(data):
            end = os.lseek(fd, 0, os.SEEK_CUR)
            if os.fstat(fd).st_size == end:  # half a line would spoil the next one
                os.ftruncate(fd, end - written)
            raise ValueError("there is no room for the line")
    finally:
        os.close(fd)


def _stores(fd: int) -> bool:
    """Returns whether a file's file system stores data; to one of the kernel's (proc, sysfs) a line is a command.

    These have no blocks, wherever they are mounted. Some file systems in memory have none either, but a known type.
    """
    if os.fstatvfs(fd).f_blocks:
        return True
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
        mount = next((line.split()[1] for line in info if line.startswith("mnt_id:")), "")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        types = (line.partition(" - ")[2].split(" ")[0] for line in mounts if line.split(" ")[0] == mount)
        return next(types, "") in _IN_MEMORY


def _datagram(body: Line) -> bytes:
    """Returns a line as journald takes it (systemd.io/JOURNAL_NATIVE_PROTOCOL): fields for queries, and one to read."""
    error, result = body.get("error"), body.get("result")
    fields = {
        "MESSAGE": _sentence(body),
        "PRIORITY": "3" if error else "6",  # LOG_ERR, LOG_INFO
        "SYSLOG_IDENTIFIER": "podwire",
        **{f"CNI_{key.upper()}": body[key] for key in body if isinstance(body[key], str | int | float)},
        **({f"CNI_ERROR_{key.upper()}": value for key, value in error.items()} if isinstance(error, dict) else {}),
        "CNI_IPS": "\n".join(map(str, result["ips"])) if isinstance(result, dict) else "",
        "CNI_STEPS": _listed(body.get("steps")),
        "CNI_CHANGES": _listed(body.get("changes")),
    }
    data = bytearray()
    for name, value in fields.items():
        content = str(value).encode("utf-8", "replace")
        if content:
            data += name.encode() + b"\n" + len(content).to_bytes(8, "little") + content + b"\n"
    return bytes(data)


def _sentence(body: Line) -> str:
    whose = [f"{word} {body[key]}" for word, key in (("of", "ifname"), ("for", "pod")) if key in body]
    start = " ".join([str(body["plugin"]), str(body.get("command", "")), *whose])
    error, result = body.get("error"), body.get("result")
    if isinstance(error, dict):
        return f"{start} failed: " + "; ".join(str(error[key]) for key in ("msg", "details") if key in error)
    given = f" ({', '.join(map(str, result['ips']))})" if isinstance(result, dict) else ""
    return f"{start}{given} took {body['ms']} ms"


def _listed(items: object) -> str:
    shown = [f"{item['ms']} ms {item['what']}" if isinstance(item, dict) else str(item) for item in _items(items)]
    return "\n".join(shown)


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _send(datagram: bytes) -> None:
    """Gives journald a datagram; raises OSError where nobody listens, or takes it right now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as journal:
        journal.sendto(datagram, socket.MSG_DONTWAIT, JOURNAL)


def _note(what: str) -> None:
    if sys.stderr is not None:
        print(one_line(f"podwire: log: {what}"), file=sys.stderr)
