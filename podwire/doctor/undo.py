"""The undo of a command that doctor prints: the difference between the state just before it and just after it.

One rule: only the object that the command names is read, so what other programs change meanwhile is not undone.
podwire's own commands restore podwire's objects, and have no undo; nor has a command that is not listed here.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable
from shlex import quote

from cni.errors import CniError
from podwire.doctor import undo_ip
from podwire.doctor.undo_parts import UndoPart, read_lines

_SEPARATOR = "&&"
_NOTHING = ("modprobe", "conntrack")  # nothing that has to be undone
_HANDLE = " # handle "
# Settings that the kernel also writes to all interfaces, with those of the interfaces; and one with which each loses
# its addresses, so that it is not undone.
_SHARED = {
    "ipv4/ip_forward": r"^net\.ipv4\.conf\..*\.forwarding$",
    "ipv6/conf/all/forwarding": r"^net\.ipv6\.conf\..*\.forwarding$",
}
_FLUSHING = "ipv6/conf/all/disable_ipv6"
_VARIES = re.compile(r"# handle \d+|packets \d+ bytes \d+")


class CommandUndo:
    """The undo of a command line; created before the command runs."""

    def __init__(self, command: str) -> None:
        self.is_complete = True
        self._before: dict[UndoPart, list[str]] = {}
        self._commands: list[str] | None = None
        for words in _simple_commands(command):
            part = _part(words)
            if part is None:
                self.is_complete = False
            elif part.read is not None and part not in self._before:
                self._add(part)

    def _add(self, part: UndoPart) -> None:
        try:
            self._before[part] = part.lines()
        except (CniError, OSError, LookupError, ValueError):  # the object is gone, or has another form
            self.is_complete = False

    def compute(self) -> list[str]:
        """Returns the commands that restore the state; computed once, just after the command."""
        if self._commands is None:
            commands = []
            for part, before in reversed(self._before.items()):
                after = part.lines()
                commands += part.revert(before, after) if _without_counters(after) != _without_counters(before) else []
            self._commands = commands
        return self._commands

    @property
    def is_restored(self) -> bool:
        """Whether the state is as before the command, except for the handles of rules, which are new."""
        return all(_comparable(part.lines()) == _comparable(before) for part, before in self._before.items())


def _comparable(lines: list[str]) -> list[str]:
    return sorted(_without_counters(lines))


def _without_counters(lines: list[str]) -> list[str]:
    return [_VARIES.sub("", line) for line in lines]


def _simple_commands(command: str) -> list[list[str]]:
    """Returns the words of each command of a line; one that other operators join is a single unknown command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    simple: list[list[str]] = [[]]
    for word in lexer:
        if word == _SEPARATOR:
            simple.append([])
        else:
            simple[-1].append(word)
    return [[""] if any(set(word) <= set("();<>|&") for word in words) else words for words in simple]


def _part(words: list[str]) -> UndoPart | None:
    """Returns what is compared for a command; a part without `read` if there is nothing to undo, None if unknown."""
    prefix: tuple[str, ...] = ()
    if words[0] == "nsenter" and words[1].startswith("--net="):
        prefix, words = tuple(words[:2]), words[2:]
    program = words[0].rpartition("/")[2]
    if program in _NOTHING:
        return UndoPart((program,))
    if program.startswith(("iptables", "ip6tables")):
        return _iptables(prefix, words)
    builder = _BUILDERS.get(program)
    try:
        return builder(prefix, words) if builder else None
    except (IndexError, ValueError):
        return None


def _sysctl(prefix: tuple[str, ...], words: list[str]) -> UndoPart | None:
    settings = [word.partition("=")[0] for word in words if "=" in word]
    if len(settings) != 1 or settings[0].endswith(_FLUSHING):
        return None
    (name,) = settings
    pattern = next((pattern for end, pattern in _SHARED.items() if name.endswith(end)), "")

    def read() -> list[str]:
        of_interfaces = read_lines(prefix, "sysctl", "-a", "--pattern", pattern) if pattern else []
        return [" ".join(" ".join(read_lines(prefix, "sysctl", "-n", name)).split()), *of_interfaces]

    def revert(before: list[str], after: list[str]) -> list[str]:
        value, *of_interfaces = before
        others = [line.replace(" = ", "=") for line in of_interfaces if line.rpartition(" = ")[2] != value]
        return [shlex.join([*prefix, "sysctl", "-w", setting]) for setting in (f"{name}={value}", *others)]

    return UndoPart((*prefix, "sysctl", name), read, revert)


def _tc(prefix: tuple[str, ...], words: list[str]) -> UndoPart | None:
    if words[1:4] != ["qdisc", "del", "dev"] or words[5:] != ["root"]:
        return None
    device = words[4]

    def read() -> list[str]:
        lines = (line.split() for line in read_lines(prefix, "tc", "qdisc", "show", "dev", device))
        return [" ".join([line[1], *line[6:]]) for line in lines if line[3:5] == ["root", "refcnt"]]

    def revert(before: list[str], after: list[str]) -> list[str]:
        start = shlex.join([*prefix, "tc", "qdisc", "replace", "dev", device, "root"])
        return [f"{start} {line}" for line in before]

    return UndoPart((*prefix, "tc", device), read, revert)


def _iptables(prefix: tuple[str, ...], words: list[str]) -> UndoPart | None:
    program = words[0]
    table = words[words.index("-t") + 1] if "-t" in words else "filter"
    verb = next((word for word in words if word in ("-A", "-I", "-D", "-P")), "")
    if not verb:
        return None
    chain = words[words.index(verb) + 1]
    start = [*prefix, program, "-t", table]
    target = words[words.index("-j") + 1] if "-j" in words else ""

    def read() -> list[str]:
        return read_lines(prefix, program, "-t", table, "-S", chain)

    def revert(before: list[str], after: list[str]) -> list[str]:
        added = [line for line in _more(after, before) if line.startswith("-A ") and f"-j {target}" in line]
        commands = [shlex.join([*start, "-D", chain]) + line.removeprefix(f"-A {chain}") for line in added]
        rules = [line for line in before if line.startswith("-A ")]
        for line in _more(before, after):
            if line.startswith("-P "):
                commands.append(f"{shlex.join(start)} {line}")
            else:
                number = str(rules.index(line) + 1)
                commands.append(shlex.join([*start, "-I", chain, number]) + line.removeprefix(f"-A {chain}"))
        return commands

    return UndoPart((*prefix, program, table, chain), read, revert)


def _more(lines: list[str], others: list[str]) -> list[str]:
    """Returns the lines that occur more often than in `others`, in their order."""
    surplus = Counter(lines) - Counter(others)
    return [line for line in dict.fromkeys(lines) for _ in range(surplus[line])]


def _nft(prefix: tuple[str, ...], words: list[str]) -> UndoPart | None:
    words = words[1:] if len(words) > 2 else words[1].split()
    if words[1] not in ("rule", "chain") or words[0] not in ("insert", "add", "delete"):
        return None
    place = tuple(words[2:5])

    def read() -> list[str]:
        lines = read_lines(prefix, "nft", "-a", "list", "chain", *place)
        policy = next((word for line in lines if " policy " in line for word in [_policy(line)]), "")
        return [
            f"policy {policy}",
            *(line.strip() for line in lines if _HANDLE in line and not line.strip().startswith("chain ")),
        ]

    def revert(before: list[str], after: list[str]) -> list[str]:
        start = shlex.join([*prefix, "nft"])
        where = shlex.join(place)
        known = [_handle(line) for line in before[1:]]  # a rule is its handle: its counters change
        added = [_handle(line) for line in after[1:] if _handle(line) not in known]
        commands = [f"{start} delete rule {where} handle {handle}" for handle in added]
        handles = [_handle(line) for line in after[1:]]
        for number, line in enumerate(before[1:], 1):
            if _handle(line) not in handles:
                text = line.partition(_HANDLE)[0]
                later = next((_handle(each) for each in before[number + 1 :] if _handle(each) in handles), "")
                verb, at = ("insert", f" handle {later}") if later else ("add", "")
                commands.append(f"{start} {quote(f'{verb} rule {where}{at} {text}')}")
        if before[0] != after[0]:
            commands.append(f"{start} {quote(f'add chain {where} {{ {before[0]}; }}')}")
        return commands

    return UndoPart((*prefix, "nft", *place), read, revert)


def _policy(line: str) -> str:
    return line.partition(" policy ")[2].partition(";")[0]


def _handle(line: str) -> str:
    return line.rpartition(_HANDLE)[2]


_BUILDERS: dict[str, Callable[[tuple[str, ...], list[str]], UndoPart | None]] = {
    "sysctl": _sysctl,
    "tc": _tc,
    "nft": _nft,
    "ip": undo_ip.build_ip,
    "bridge": undo_ip.build_bridge,
}
