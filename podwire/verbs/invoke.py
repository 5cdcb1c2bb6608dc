"""Runs one verb of one plugin as libcni does: finds its file in CNI_PATH, sets its environment, writes its input.

Every outcome, errors included, is a `PluginOutcome`; only signals raise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cni import delegate, gojson
from cni.conf import Attachment
from cni.errors import CniError, Code, internal
from process import child
from process.child import Outcome, Spawn

_NO_ATTACHMENT = Attachment("", "")
_SHOWN = 200  # bytes shown of an invalid result


@dataclass(frozen=True)
class PodArgs:
    """An attachment and its arguments; all "" for GC, STATUS and VERSION.

    `cni_args` is CNI_ARGS ("K=V;K=V"), `capability_args` the value of each capability.
    """

    attachment: Attachment = _NO_ATTACHMENT
    netns: str = ""
    cni_args: str = ""
    capability_args: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class PluginCall:
    """A verb of the plugin `kind`: `request` is its input, `env` its whole environment, `path` where plugins are."""

    kind: str
    command: str
    request: Mapping[str, object]
    env: Mapping[str, str] = field(repr=False)
    path: tuple[str, ...]

    @property
    def stdin(self) -> bytes:
        """The request as it is written to the plugin."""
        return gojson.dumps(self.request).encode("utf-8", "replace")


@dataclass(frozen=True)
class PluginOutcome:
    """The outcome of a call: its time, ADD's result as JSON or the error, and its stderr.

    `changes` are those made or planned, None if unknown; `account` has the lines of its log.
    """

    kind: str
    command: str
    ms: float
    result: object = None
    error: CniError | None = None
    stderr: str = ""
    changes: tuple[str, ...] | None = None
    account: tuple[Mapping[str, object], ...] = ()
    attachment: Attachment = _NO_ATTACHMENT

    def to_json(self) -> dict[str, object]:
        """Returns the step as --json prints it."""
        error = {key: value for key, value in self.error.to_json("").items() if value} if self.error else None
        filled: dict[str, object] = {
            "containerID": self.attachment.container_id,
            "ifname": self.attachment.ifname,
            "error": error,
            "stderr": self.stderr,
            "account": list(self.account),
        }
        body: dict[str, object] = {"plugin": self.kind, "command": self.command, "ms": round(self.ms, 3)}
        body |= {key: value for key, value in filled.items() if value}
        return body if self.changes is None else {**body, "changes": list(self.changes)}


# Runs a call: executes the plugin's file, or plans its changes.
Serve = Callable[[PluginCall], PluginOutcome]


def environment(command: str, pod: PodArgs, env: Mapping[str, str], path: tuple[str, ...]) -> dict[str, str]:
    """Returns a plugin's environment: the caller's, with all CNI_* parameters replaced (as libcni)."""
    parameters = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": pod.attachment.container_id,
        "CNI_NETNS": pod.netns,
        "CNI_ARGS": pod.cni_args,
        "CNI_IFNAME": pod.attachment.ifname,
        "CNI_PATH": ":".join(path),
    }
    return {**env, **parameters}


def execute(call: PluginCall, spawn: Spawn = child.posix_spawn) -> PluginOutcome:
    """Runs the plugin's file and waits for it; `spawn` starts it."""
    start_ns = time.perf_counter_ns()
    result, error, stderr, program = None, None, "", ""
    try:
        program = delegate.find(call.kind, call.path)
        command = child.ChildCommand((program,), call.env, call.stdin, capture_stderr=True)
        # No time limit: the operator watches it and can end it.
        (outcome,) = child.run(command, spawn=spawn, limit_s=None)
        stderr = outcome.stderr.decode("utf-8", "replace")
        result = parse_answer(outcome, call)
    except OSError as failure:
        error = delegate.not_runnable(program, failure)
    except CniError as failure:
        error = failure
    return PluginOutcome(call.kind, call.command, (time.perf_counter_ns() - start_ns) / 1e6, result, error, stderr)


def parse_answer(outcome: Outcome, call: PluginCall) -> object:
    """Returns the JSON that a plugin printed, None for verbs without a result; raises its error, as libcni does."""
    if outcome.status == 0 and call.command not in ("ADD", "VERSION"):
        return None
    try:
        body = gojson.loads(outcome.stdout)
    except ValueError:
        body = None
    if outcome.status == 0:
        if not isinstance(body, dict):
            raise CniError(Code.DECODING_FAILURE, f"{call.kind} printed no result", _shown(outcome))
        # As libcni: a result without a version has the request's.
        return body if body.get("cniVersion") else {**body, "cniVersion": call.request.get("cniVersion")}
    code, msg = (body.get("code"), body.get("msg")) if isinstance(body, dict) else (None, None)
    if isinstance(body, dict) and isinstance(code, int) and isinstance(msg, str) and msg:
        details = body.get("details")
        raise CniError(code, msg, details if isinstance(details, str) else "")
    raise internal(f"{call.kind} failed without an error object: {outcome.ending}", _shown(outcome))


def _shown(outcome: Outcome) -> str:
    text = outcome.stdout[:_SHOWN].decode("utf-8", "replace").strip()
    return f"it printed: {text}" if text else "it printed nothing on stdout; its stderr is above"
