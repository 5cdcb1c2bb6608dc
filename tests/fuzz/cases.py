"""Cases: the whole input of an invocation, as a value that can be stored.

One rule: a case is a line of JSON in corpus/<target>.jsonl, with bytes as Latin-1, so that people can read it.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import mutation

CORPUS = Path(__file__).parent / "corpus"


@dataclass
class Case:
    """One invocation; `files`, by path, are created first; `replies` are those of the kernel and of programs."""

    plugin: str
    env: dict[str, str]
    stdin: str
    files: dict[str, str | None] = field(default_factory=dict)
    replies: list[Any] = field(default_factory=list)


def corpus(target: str) -> list[tuple[str, Case]]:
    """Returns the stored cases of a target, with their names."""
    path = _path(target)
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else [])
    return [(line.pop("name"), Case(**line)) for line in lines]


def add_to_corpus(target: str, name: str, case: Case) -> None:
    """Stores a case unless the target has a case of this name."""
    cases = dict(corpus(target))
    if name not in cases:
        cases[name] = case
        lines = (json.dumps({"name": name, **cases[name].__dict__}) for name in sorted(cases))
        _path(target).write_text("".join(f"{line}\n" for line in lines))


def _path(target: str) -> Path:
    return CORPUS / f"{target}.jsonl"


class Source:
    """An endless sequence of cases of one target; the same seed and number give the same case."""

    def __init__(self, target: str, seed: int) -> None:
        names = _CORPORA.get(target, (target,))
        self._seeds = [case for name in names for _, case in corpus(name)]
        self._change = _CHANGES[target]
        self._seed = seed
        self._values = [case.stdin for case in self._seeds]

    def case(self, number: int) -> Case:
        """Returns a stored case with changes; the first numbers are the unchanged stored cases."""
        if number < len(self._seeds):
            return copy.deepcopy(self._seeds[number])
        random = Random(self._seed << 40 | number)
        case = copy.deepcopy(random.choice(self._seeds))
        self._change(random, case, self._values)
        return case


def _change_stdin(random: Random, case: Case, others: list[str]) -> None:
    if random.random() < 0.25:
        _change_bytes(random, case)
        return
    try:
        value, other = _decode(case.stdin), _decode(random.choice(others))
    except (ValueError, RecursionError):
        _change_bytes(random, case)
        return
    text = mutation.serialize(mutation.mutate_json(random, value, [other])).encode("utf-8", "surrogatepass")
    if random.random() < 0.05:
        text = mutation.mutate_bytes(random, text)
    case.stdin = text.decode("latin-1")


def _change_bytes(random: Random, case: Case) -> None:
    case.stdin = mutation.mutate_bytes(random, case.stdin.encode("latin-1")).decode("latin-1")


def _decode(stdin: str) -> Any:
    return mutation.parse(stdin.encode("latin-1").decode())


def _change_previous(random: Random, case: Case, others: list[str]) -> None:
    """Changes prevResult alone."""
    try:
        kind, pairs = _decode(case.stdin)
        index = next(index for index, (key, _) in enumerate(pairs) if key == "prevResult")
        donors = [dict(_decode(other)[1]).get("prevResult", ()) for other in random.sample(others, 1)]
    except (ValueError, StopIteration, TypeError, RecursionError):
        _change_stdin(random, case, others)
        return
    donors = [donor for donor in donors if donor] or [pairs[index][1]]
    pairs[index] = ("prevResult", mutation.mutate_json(random, pairs[index][1], donors))
    case.stdin = mutation.serialize((kind, pairs)).encode("utf-8", "surrogatepass").decode("latin-1")


_ODD = ["", "x" * 300, "x" * 5000, "a b", "a\nb", "'", '"', "..", "../../x", "/", "-", "é", "\udcff", "%d", "eth0:1"]
_ODD += ["\0", "IP=10.1.2.7", "IP=x", "IgnoreUnknown=1;X=1", "MAC=02:00:00:00:00:07", ";", "=", "A=B", "A=B=C"]
_ODD += ["IgnoreUnknown=maybe"]
_FILES = ["10.1.2.4", "fd00:1:2::4", "last_reserved_ip.0", "last_reserved_ip.1", "lock", "é"]
_NAMES = ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE"]


def _change_environment(random: Random, case: Case, others: list[str]) -> None:
    for _ in range(random.choice((1, 1, 2, 3))):
        name = random.choice(_NAMES)
        match random.randrange(4):
            case 0:
                case.env.pop(name, None)
            case 1:
                case.env[name] = random.choice(_ODD)
            case _:
                old = case.env.get(name, "").encode("utf-8", "surrogateescape")
                case.env[name] = mutation.mutate_bytes(random, old).decode("utf-8", "surrogateescape")


def _change_files(random: Random, case: Case, others: list[str]) -> None:
    """Changes contents, names, number and types of the files."""
    for _ in range(random.choice((1, 1, 2, 4))):
        path = random.choice(list(case.files))
        content = case.files[path]
        match random.randrange(8):
            case 0:
                case.files[path] = None  # a directory
            case 1:
                case.files[path] = random.choice(("", "\r\n", "cid", "cid\r\neth0", "x" * 5000, "\0" * 64, " "))
            case 2:
                directory = path.rpartition("/")[0]
                name = random.choice(_FILES)
                case.files[f"{directory}/{name}"] = content
            case 3 if len(case.files) > 1:
                del case.files[path]
            case _:
                case.files[path] = mutation.mutate_bytes(random, (content or "").encode("latin-1")).decode("latin-1")


def _change_replies(random: Random, case: Case, others: list[str]) -> None:
    """Changes replies of the kernel or of programs: bytes, attributes, order, number."""
    replies = case.replies
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        index = random.randrange(len(replies)) if replies else 0
        if not replies:
            return
        match random.randrange(10):
            case 0:
                del replies[index]
            case 1:
                replies.insert(index, copy.deepcopy(random.choice(replies)))
            case 2:
                other = random.randrange(len(replies))
                replies[index], replies[other] = replies[other], replies[index]
            case _:
                replies[index] = _change_reply(random, replies[index])


def _change_reply(random: Random, reply: Any) -> Any:
    if isinstance(reply, list):  # a program's exit status and output
        status, output = reply
        status = random.choice((status, status, 0, 1, 2, 3, 4, -9))
        return [status, mutation.mutate_bytes(random, output.encode("latin-1")).decode("latin-1")]
    data = reply.encode("latin-1")
    changed = _change_attribute(random, data) if random.random() < 0.5 else mutation.mutate_bytes(random, data)
    return changed.decode("latin-1")


def _change_attribute(random: Random, data: bytes) -> bytes:
    """Removes or changes an attribute of a netlink message, and corrects all lengths."""
    at = 0
    messages = []
    while at + 16 <= len(data):
        size = max(16, int.from_bytes(data[at : at + 4], "little"))
        messages.append(data[at : at + size])
        at += (size + 3) & ~3
    if not messages:
        return data
    index = random.randrange(len(messages))
    chosen = messages[index]
    head = random.choice((16 + 16, 16 + 8, 16 + 12, 16 + 4, 16 + 20))
    content = _change_attributes(random, chosen[head:], 0)
    messages[index] = (len(chosen[:head]) + len(content)).to_bytes(4, "little") + chosen[4:head] + content
    return b"".join(message + bytes(-len(message) % 4) for message in messages)


def _change_attributes(random: Random, data: bytes, depth: int) -> bytes:
    at, parts = 0, []
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        if size < 4 or at + size > len(data):
            return mutation.mutate_bytes(random, data)
        parts.append((data[at + 2 : at + 4], data[at + 4 : at + size]))
        at += (size + 3) & ~3
    if not parts:
        return mutation.mutate_bytes(random, data) if data else data
    index = random.randrange(len(parts))
    kind, content = parts[index]
    match random.randrange(6):
        case 0:
            del parts[index]
        case 1:
            parts[index] = (kind, mutation.mutate_bytes(random, content))
        case 2:
            parts[index] = (kind, content[: random.randrange(len(content) + 1)])
        case 3:
            parts[index] = (random.choice(parts)[0], content)
        case _ if depth < 4 and len(content) >= 4:
            parts[index] = (kind, _change_attributes(random, content, depth + 1))
    pieces = [(len(data) + 4).to_bytes(2, "little") + kind + data + bytes(-len(data) % 4) for kind, data in parts]
    return b"".join(pieces)


def _change_input(random: Random, case: Case, others: list[str]) -> None:
    if random.random() < 0.3:
        _change_environment(random, case, others)
    else:
        _change_stdin(random, case, others)


_CHANGES: dict[str, Callable[[Random, Case, list[str]], None]] = {
    "stdin": _change_stdin,
    "environment": _change_environment,
    "previous": _change_previous,
    "store": _change_files,
    "cache": _change_files,
    "replies": _change_replies,
    "programs": _change_input,
}
_CORPORA = {"programs": ("stdin", "environment")}
TARGETS = tuple(_CHANGES)
