"""The verb log: one line of JSON for each verb (process.log writes it).

Logging never changes a verb's result or exit status; a failure to log is reported on stderr. Logging is
off by default, and then costs no system call.

The environment enables it, or for a network keys of its configuration; the environment wins:

    PODWIRE_LOG, logFile           a file's absolute path, "stderr", or "journald" (its native protocol)
    PODWIRE_LOG_LEVEL, logLevel    "error": verbs that fail; "info" (the default): every verb; "debug": with its steps
                                   and the changes that it made

- VERSION is not logged. A delegate that runs inside this process (usually host-local) is a step of the plugin that
  called it; a delegate in a process of its own writes its own line.
- A line contains only known keys. Values from CNI_ARGS, unknown keys and the environment may be secret: they are left
  out, and an error that quotes a pair of CNI_ARGS is logged without the value.
- A line has less than LINE_BYTES. Longer texts are cut and end with "...", longer lists with the number of items cut.
- The W3C trace context (TRACEPARENT) is logged and, like all variables, passed on to delegates.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from cni import gojson
from cni.conf import NetConf
from cni.errors import CniError
from cni.result import Result
from process import log, record
from process.log import JOURNALD, LEVELS, cut, cut_list
from process.record import VerbRecord

_ID_BYTES, _MESSAGE_BYTES = 512, 8 << 10
_CHANGES_BYTES, _STEPS_BYTES, _IPS_BYTES = 28 << 10, 6 << 10, 4 << 10
_NOT_RECORDED = nullcontext()
_LOGGED_ARGS = (
    "IgnoreUnknown",
    "IP",
    "MAC",
    "K8S_POD_NAMESPACE",
    "K8S_POD_NAME",
    "K8S_POD_INFRA_CONTAINER_ID",
    "K8S_POD_UID",
)
_TRACEPARENT = re.compile(
    r"(?!ff|00-.{53})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?"
)

Entry = dict[str, object]


class VerbLog:
    """The log of one verb of `plugin`; `version` is podwire's, `env` the environment that the runtime set."""

    def __init__(self, plugin: str, version: str, env: Mapping[str, str]) -> None:
        self._plugin, self._version, self._env = plugin, version, env
        self._target = env.get("PODWIRE_LOG", "")
        self._level = env.get("PODWIRE_LOG_LEVEL", "") if self._target else ""
        self._net_conf: NetConf | None = None
        self._record: VerbRecord | None = None
        self._start_ns = time.perf_counter_ns()

    def recording(self, net_conf: NetConf) -> AbstractContextManager[object]:
        """Records the changes and steps of the block at level "debug", set by the environment or the configuration."""
        self._net_conf = net_conf
        if not self._target and net_conf.fields.has("logFile"):
            self._target, self._level = _key(net_conf, "logFile"), self._env.get("PODWIRE_LOG_LEVEL", "")
        if not self._target:
            return _NOT_RECORDED
        if not self._level and net_conf.fields.has("logLevel"):
            self._level = _key(net_conf, "logLevel")
        return self._recorded() if self._level == "debug" else _NOT_RECORDED

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        with record.recording() as self._record:
            yield

    def write(self, result: Result | None = None, failure: CniError | None = None) -> None:
        """Writes the line if logging is on; a failure to do so is reported on stderr only."""
        if not self._target or self._env.get("CNI_COMMAND") == "VERSION":
            return
        try:
            if self._level not in ("", *LEVELS):
                log.warn(f'the level must be one of {", ".join(LEVELS)}, not "{self._level}"; using "info"')
            if failure or self._level != "error":
                self._write(self._entry(result, failure))
        except Exception as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            log.warn(f"cannot write to {self._target}: {why}")

    def _entry(self, result: Result | None, failure: CniError | None) -> Entry:
        ms = (time.perf_counter_ns() - self._start_ns) / 1e6
        return entry(self._plugin, self._version, self._env, self._net_conf, ms, result, failure, self._record)

    def _write(self, body: Entry) -> None:
        if self._target == JOURNALD:
            log.send_to_journald(_journal_fields(body))
        else:
            log.write_line(self._target, gojson.dumps(body))


def entry(
    plugin: str,
    version: str,
    env: Mapping[str, str],
    net_conf: NetConf | None,
    ms: float,
    result: Result | None = None,
    failure: CniError | None = None,
    recorded: VerbRecord | None = None,
) -> Entry:
    """Returns the entry of a verb that has just ended, after `ms` milliseconds; unknown values are left out."""
    body = _ids(plugin, version, env, net_conf, failure)
    body["ms"] = round(ms, 3)
    if result and result.ips:
        addresses = (str(item.address) for item in result.ips)
        body["result"] = {"ips": cut_list(addresses, len(result.ips), _IPS_BYTES, _size)}
    if failure:
        texts = {"msg": failure.msg, "details": failure.details}
        error = {key: cut(_without_secrets(text, env), _MESSAGE_BYTES, _size) for key, text in texts.items() if text}
        body["error"] = {"code": failure.code, **error}
    if recorded and recorded.steps:
        steps = ({"what": cut(step.what, _ID_BYTES, _size), "ms": round(step.ms, 3)} for step in recorded.steps)
        body["steps"] = cut_list(steps, len(recorded.steps), _STEPS_BYTES, _size)
    if recorded and recorded.changes:
        body["changes"] = cut_list(recorded.changes, len(recorded.changes), _CHANGES_BYTES, _size)
    return body


def _ids(
    plugin: str, version: str, env: Mapping[str, str], net_conf: NetConf | None, failure: CniError | None
) -> Entry:
    """Returns the fields that identify the verb, its attachment and its trace."""
    trace = _TRACEPARENT.fullmatch(env.get("TRACEPARENT", ""))
    ids = {
        "time": _now(),
        "level": "error" if failure else "info",
        "plugin": plugin,
        "version": version,
        "pid": os.getpid(),
        "command": env.get("CNI_COMMAND"),
        "network": net_conf and net_conf.name,
        "containerID": env.get("CNI_CONTAINERID"),
        "ifname": env.get("CNI_IFNAME"),
        "netns": env.get("CNI_NETNS"),
        "pod": _pod(env),
        "cniVersion": net_conf and net_conf.version,
        "traceID": trace and trace[1],
        "parentID": trace and trace[2],
    }
    known = {key: value for key, value in ids.items() if value}
    return {key: cut(value, _ID_BYTES, _size) if isinstance(value, str) else value for key, value in known.items()}


def _key(net_conf: NetConf, key: str) -> str:
    try:
        return net_conf.fields.string(key)
    except CniError as error:
        log.warn(error.msg)
        return ""


def _now() -> str:
    """Returns the current time in UTC, in RFC 3339 format."""
    seconds, ns = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ns // 1_000_000:03d}Z"


def _pieces(env: Mapping[str, str]) -> list[str]:
    return env.get("CNI_ARGS", "").split(";")


def _pod(env: Mapping[str, str]) -> str:
    """Returns the pod, "namespace/name", as Kubernetes' runtimes pass it in CNI_ARGS; "" for other runtimes."""
    known = {key: value for key, _, value in (piece.partition("=") for piece in _pieces(env))}
    namespace, name = known.get("K8S_POD_NAMESPACE", ""), known.get("K8S_POD_NAME", "")
    return f"{namespace}/{name}" if namespace and name else ""


def _without_secrets(text: str, env: Mapping[str, str]) -> str:
    """Returns an error's text without the values of unknown keys of CNI_ARGS, which may be secret."""
    for piece in _pieces(env):
        key, equals, _ = piece.partition("=")
        if key not in _LOGGED_ARGS:
            text = text.replace(f'"{piece}"', f'"{key}=..."' if equals else '"..."')
    return text


def _size(value: object) -> int:
    return len(gojson.dumps(value).encode("utf-8", "replace"))


def _journal_fields(body: Entry) -> dict[str, str]:
    """Returns an entry's fields for journald: single values for queries, and a sentence for readers (MESSAGE)."""
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
    return {name: str(value) for name, value in fields.items()}


def _sentence(body: Entry) -> str:
    words = [f"{word} {body[key]}" for word, key in (("of", "ifname"), ("for", "pod")) if key in body]
    start = " ".join([str(body["plugin"]), str(body.get("command", "")), *words])
    error, result = body.get("error"), body.get("result")
    if isinstance(error, dict):
        return f"{start} failed: " + "; ".join(str(error[key]) for key in ("msg", "details") if key in error)
    addresses = f" ({', '.join(map(str, result['ips']))})" if isinstance(result, dict) else ""
    return f"{start}{addresses} took {body['ms']} ms"


def _listed(items: object) -> str:
    shown = [f"{item['ms']} ms {item['what']}" if isinstance(item, dict) else str(item) for item in _items(items)]
    return "\n".join(shown)


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []
