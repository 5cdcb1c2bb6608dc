"""CmdArgs: the CNI_* environment variables, validated as each verb demands.

The environment is an argument, and an invalid variable is refused before anything else happens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from cni.conf import VALID_NAME
from cni.errors import CniError, Code
from process.values import dataclass, field

if TYPE_CHECKING:
    from cni.skel import Plugin

COMMANDS = ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION")
_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}
_SEPARATOR = re.compile(r"[/:\s]")
_IFNAME_BYTES = 15  # IFNAMSIZ - 1 (linux/if.h)


class _Variable(NamedTuple):
    name: str
    required: tuple[str, ...]


# The order is observable: it is the order of names in the error text (reference: skel.getCmdArgsFromEnv).
_VARIABLES = (
    _Variable("CNI_COMMAND", COMMANDS),
    _Variable("CNI_CONTAINERID", ("ADD", "CHECK", "DEL")),
    _Variable("CNI_NETNS", ("ADD", "CHECK")),
    _Variable("CNI_IFNAME", ("ADD", "CHECK", "DEL")),
    _Variable("CNI_ARGS", ()),
    _Variable("CNI_PATH", ("ADD", "CHECK", "DEL", "GC", "STATUS")),
)


@dataclass(frozen=True)
class CmdArgs:
    """An invocation: the verb, its attachment, and everything that is passed on to a delegate.

    `netns` is "" when unset (DEL), `path` the directories of CNI_PATH, `stdin` the request's exact bytes,
    `delegates` the plugins built into this executable. With `in_process` they run in this process whatever file
    on CNI_PATH has their name: for dry runs, which must not run an unknown program.
    """

    command: str
    container_id: str
    netns: str
    ifname: str
    args: str
    path: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    stdin: bytes = field(default=b"", repr=False)
    delegates: Mapping[str, Plugin] = field(default_factory=dict, repr=False)
    in_process: bool = False

    def cni_args(self, *known: str) -> dict[str, str]:
        """Returns the pairs of CNI_ARGS whose keys are in `known` (case-sensitive, as in the reference).

        Raises CniError(4) for malformed pairs and, unless IgnoreUnknown is true, for unknown keys.
        """
        pairs = _pairs(self.args)
        ignore_unknown = False
        for key, value in pairs:
            if key == "IgnoreUnknown":
                flag = _BOOLEANS.get(value.lower())
                if flag is None:
                    raise _args_error(
                        f'ARGS: error parsing value of pair ["IgnoreUnknown" "{value}"]: '
                        f"boolean unmarshal error: invalid input {value}"
                    )
                ignore_unknown = flag
        unknown = " ".join(f'"{key}={value}"' for key, value in pairs if key not in (*known, "IgnoreUnknown"))
        if unknown and not ignore_unknown:
            raise _args_error(
                f"ARGS: unknown args [{unknown}]",
                "add IgnoreUnknown=1 to CNI_ARGS, or use one of " + ", ".join(known or ("(none)",)),
            )
        return {key: value for key, value in pairs if key in known}


def from_env(env: Mapping[str, str]) -> CmdArgs:
    """Reads the CNI_* variables (specification, section "Parameters"; order and texts as the reference).

    Raises CniError(4), naming the variable. An unknown command is not refused here: stdin is validated first.
    """
    values = {name: env.get(name, "") for name, _ in _VARIABLES}
    command = values["CNI_COMMAND"]
    missing = []
    for name, required in _VARIABLES:
        value = values[name]
        if not value:
            if command in required or name == "CNI_COMMAND":
                missing.append(name)
        elif command in required:
            if name == "CNI_CONTAINERID":
                check_container_id(value)
            elif name == "CNI_IFNAME":
                check_ifname(value)
    if missing:
        raise CniError(Code.INVALID_ENVIRONMENT, f"required env variables [{','.join(missing)}] missing")
    return CmdArgs(
        command=command,
        container_id=values["CNI_CONTAINERID"],
        netns=values["CNI_NETNS"],
        ifname=values["CNI_IFNAME"],
        args=values["CNI_ARGS"],
        path=tuple(filter(None, values["CNI_PATH"].split(":"))),
        env=env,
    )


def check_container_id(value: str) -> None:
    """Raises CniError(4) for an invalid container ID."""
    if not VALID_NAME.fullmatch(value):
        raise CniError(Code.INVALID_ENVIRONMENT, "invalid characters in containerID", value)


def is_interface_name(value: str, *, max_bytes: int = _IFNAME_BYTES) -> bool:
    """Returns whether `value` is a valid interface name."""
    try:
        check_ifname(value, max_bytes=max_bytes)
    except CniError:
        return False
    return True


def check_ifname(value: str, *, max_bytes: int = _IFNAME_BYTES) -> None:
    """Raises CniError(4) for an invalid interface name."""
    problem, details = "", value
    if not value:
        problem = "interface name is empty"
    elif len(value.encode("utf-8", "replace")) > max_bytes:
        problem, details = "interface name is too long", "interface name should be less than 16 characters"
    elif value in (".", ".."):
        problem, details = "interface name is . or ..", ""
    elif _SEPARATOR.search(value):
        problem = "interface name contains / or : or whitespace characters"
    elif "%" in value or not value.isprintable():  # to the kernel "%d" is a request to choose a number
        problem = "interface name contains % or unprintable characters"
    if problem:
        raise CniError(Code.INVALID_ENVIRONMENT, problem, details)


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = []
    for piece in text.split(";") if text else ():
        key, equals, value = piece.partition("=")
        if not equals or "=" in value:
            raise _args_error(f'ARGS: invalid pair "{piece}"', "CNI_ARGS is K=V;K=V")
        pairs.append((key, value))
    return pairs


def _args_error(msg: str, details: str = "") -> CniError:
    return CniError(Code.INVALID_ENVIRONMENT, msg, details)
