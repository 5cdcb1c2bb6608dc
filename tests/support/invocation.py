"""Runs one plugin as a runtime does: environment, stdin, stdout, exit status.

One rule: a plugin sees the CNI_* variables and PATH, and nothing of the tester's environment.
"""

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from tests.support import binaries
from tests.support.namespaces import Namespace
from tests.support.processes import PATH

Config = Mapping[str, Any] | bytes

_TIMEOUT_S = 60.0


class Outcome(NamedTuple):
    status: int
    stdout: bytes
    stderr: str

    @property
    def json(self) -> Any:
        """The JSON document on stdout; any other output fails the test."""
        return strict_json(self.stdout)

    def result(self) -> dict[str, Any]:
        """Returns the result of a successful ADD."""
        assert self.status == 0, f"failed: {self.stdout.decode(errors='replace')} {self.stderr}"
        assert isinstance(self.json, dict), self.stdout
        return self.json

    def assert_silent(self) -> None:
        """Asserts the success of a DEL, CHECK, GC or STATUS: exit status 0 and an empty stdout."""
        assert (self.status, self.stdout) == (0, b""), f"{self.stdout.decode(errors='replace')} {self.stderr}"

    def error(self) -> dict[str, Any]:
        """Returns the error object of a failure, after checking its form (specification, section "Error")."""
        assert self.status == 1, f"exit status {self.status}: {self.stdout!r} {self.stderr}"
        body = self.json
        assert isinstance(body, dict), body
        assert body.keys() <= {"cniVersion", "code", "msg", "details"}, body
        assert isinstance(body["code"], int), body
        assert isinstance(body["msg"], str), body
        assert body["msg"], body
        assert body.get("details", "absent"), f"empty details must be left out: {body}"
        assert "Traceback" not in self.stderr, self.stderr
        return body


def strict_json(text: bytes) -> Any:
    """Parses exactly one JSON document: no duplicate keys, no NaN, no invalid UTF-8, nothing after it."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        items = dict(pairs)
        assert len(items) == len(pairs), f"duplicate keys in {[key for key, _ in pairs]}"
        return items

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert text, "stdout is empty"
    return json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)


def environment(command: str | None, **variables: str | None) -> dict[str, str]:
    """Returns the environment of an invocation: PATH, CNI_COMMAND and `variables`, without those that are None."""
    every = {"PATH": PATH, "CNI_COMMAND": command, **variables}
    return {name: value for name, value in every.items() if value is not None}


def gc_keys(*valid: tuple[str, str]) -> dict[str, Any]:
    """Returns the keys of GC's configuration with the container IDs and interfaces of the valid attachments."""
    attachments = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in valid]
    return {"cniVersion": "1.1.0", "cni.dev/valid-attachments": attachments}


def start_plugin(
    name: str,
    command: str | None,
    *,
    netns: Namespace | str | None = None,
    container_id: str | None = "cid",
    ifname: str | None = "eth0",
    args: str | None = None,
    path: str | None = None,
    env: Mapping[str, str | None] | None = None,
    host: Namespace | None = None,
    bin_dir: Path | None = None,
    stdin: int | IO[bytes] = subprocess.PIPE,
    stdout: int | IO[bytes] = subprocess.PIPE,
    before: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Starts the plugin `name` of `bin_dir` in the namespace `host`, without waiting; the process is the plugin itself.

    `path` is CNI_PATH, by default `bin_dir`. None omits a variable; `env` overrides all of them. `before` is the
    command line of a program that starts the plugin, such as strace.
    """
    directory = bin_dir or binaries.directory()
    variables = {
        "CNI_CONTAINERID": container_id,
        "CNI_NETNS": netns.path if isinstance(netns, Namespace) else netns,
        "CNI_IFNAME": ifname,
        "CNI_ARGS": args,
        "CNI_PATH": str(directory) if path is None else path,
        **(env or {}),
    }
    with host.entered() if host else contextlib.nullcontext():
        return subprocess.Popen(
            [*before, str(directory / name)],
            env=environment(command, **variables),
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )


def feed(process: subprocess.Popen[bytes], config: Config) -> None:
    """Writes a configuration to a started plugin's stdin; `finish` waits for its end."""
    assert process.stdin is not None
    process.stdin.write(_bytes(config))
    process.stdin.close()
    process.stdin = None


def finish(process: subprocess.Popen[bytes], config: Config | None = None) -> Outcome:
    """Writes `config` to a started plugin's stdin and waits for its end; kills it after a minute."""
    try:
        stdout, stderr = process.communicate(None if config is None else _bytes(config), timeout=_TIMEOUT_S)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return Outcome(process.returncode, stdout or b"", stderr.decode(errors="replace"))


def run_plugin(name: str, command: str | None, config: Config = b"", **options: Any) -> Outcome:
    """Runs one invocation to its end: `config` (an object or bytes) is stdin, `options` are those of start_plugin."""
    return finish(start_plugin(name, command, **options), config)


def _bytes(config: Config) -> bytes:
    return config if isinstance(config, bytes) else json.dumps(config).encode()
