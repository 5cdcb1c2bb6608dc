"""Blocks and entries as JSON documents, and the names of their objects: the same in both stores.

One rule: an invalid object, as after an edit by hand, is never free and never this node's. It is read as a value of no
node (`DAMAGED_BLOCK`, `DAMAGED_RECORD`), so the protocol leaves it alone, and with a problem that has a fix.

    block  {"cidr": "10.22.0.64/26", "owner": "5f0c...", "epoch": "k3v9...", "generation": 3, "pool": "default",
            "nodeName": "worker-1", "claimed": "2026-11-25T12:00:00Z"}
           of a sticky address also "key": "team-a/db-0@podwire", also while it has no owner
    entry  {"machine": "...", "instance": "...", "epoch": "k3v9...", "fenced": false, "name": "worker-1",
            "addresses": ["192.0.2.10"], "networks": ["10.22.0.64/26"]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TypeVar

from agent.api_object import Document
from agent.pools.block_protocol import FREE, BlockRecord, NodeRecord, Token
from agent.pools.space import Space, parse_space
from agent.pools.store import BlockNote, NodeEntry, Stored
from cni.address import Network, format_ip, parse_ip

T = TypeVar("T")

DAMAGED_BLOCK = BlockRecord("(damaged)", Token("", 0))
# Foreign to every machine, and of no epoch: no agent registers in it, and none claims blocks while it is there.
DAMAGED_RECORD = NodeRecord("(damaged)", "(damaged)", "")
DAMAGED_ENTRY = NodeEntry(DAMAGED_RECORD)

_NODE = re.compile(r"[a-z0-9]{1,63}")  # 32 hex digits; no "-": it separates space and node in the name of an object
_BLOCK_NAME = re.compile(r"([0-9a-f]{8}|[0-9a-f]{32})-([0-9]{1,3})")
# Kubernetes compares texts in their JSON form, in which Go and Python encode other characters differently.
_TEXT = re.compile(r"[ -%'-;=?-~]{0,256}")  # ASCII without < > &
_KEY = re.compile(r"[-A-Za-z0-9._:/@]{1,512}")
_MAX_GENERATION = 1 << 53  # JSON numbers are exact below
_BLOCK_FIX = (
    "write its owner, epoch and generation again, as in the grants file of the node that uses it; "
    "delete it only when no node uses it"
)
# The entry of a node that has not registered: the others wait for it, and its agent registers over it.
_ENTRY_FIX = (
    'write {"machine": "", "instance": "", "epoch": "", "fenced": false, "name": "", "addresses": [], "networks": [], '
    '"registered": ""} in its place: its agent completes it; do not delete it'
)


def is_node(node: str) -> bool:
    """Returns whether a text can be a node ID."""
    return bool(_NODE.fullmatch(node))


def check_node(node: str) -> str:
    """Returns a node ID; raises ValueError if it is not valid."""
    if not is_node(node):
        raise ValueError(f"{node!r} is not a valid node ID: at most 63 of a-z and 0-9")
    return node


def block_name(block: Network) -> str:
    """Returns the name of a block's object: its address in hex, and the prefix length, such as "0a160040-26"."""
    return f"{block.network_address.packed.hex()}-{block.prefixlen}"


def parse_block_name(name: str) -> Network:
    """Returns the block of a name; raises ValueError for any other form, so that no block has two names."""
    match = _BLOCK_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a block, such as 0a160040-26")
    packed, prefix = bytes.fromhex(match[1]), int(match[2])
    try:
        block: Network = (IPv4Network if len(packed) == 4 else IPv6Network)((packed, prefix))
    except ValueError as error:
        raise ValueError(f"{name!r} is not the name of a block: {error}") from None
    if name != block_name(block):
        raise ValueError(f"{name!r} is not the name of a block, that is {block_name(block)!r}")
    return block


def block_of_name(name: str) -> Network | None:
    """Returns the block of a name; None if the name is not that of a block."""
    try:
        return parse_block_name(name)
    except ValueError:
        return None


def format_block(block: Network, record: BlockRecord, note: BlockNote) -> dict[str, object]:
    """Returns the document of a block. Owner, epoch, generation and key are read again; the rest is for people."""
    return {
        "cidr": str(block),
        "owner": record.owner,
        "epoch": record.token.epoch,
        "generation": record.token.generation,
        "pool": note.pool,
        "nodeName": note.node_name,
        "claimed": note.claimed,
        **({"key": note.key} if note.key else {}),
    }


def parse_block(document: Document) -> BlockRecord:
    """Returns the block in a document; raises ValueError, whose text names the key."""
    owner, epoch, generation = _text(document, "owner"), _text(document, "epoch"), document.get("generation")
    if owner:
        check_node(owner)
    if not isinstance(generation, int) or isinstance(generation, bool) or not 0 <= generation < _MAX_GENERATION:
        raise ValueError(f'"generation" {generation!r} is not a number from 0 to 2^53')
    if owner and not generation:
        raise ValueError('"generation" is 0, and the block has an owner')
    key = document.get("key", "-")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ValueError('"key" is not that of a pod, such as team-a/db-0@podwire')
    return BlockRecord(owner, Token(epoch, generation))


def parse_note(document: Document) -> BlockNote:
    """Returns the remarks in the document of a block, "" for each that is not valid."""
    names = ("pool", "nodeName", "claimed", "key")
    return BlockNote(*(value if isinstance(value := document.get(name), str) else "" for name in names))


def format_entry(entry: NodeEntry) -> dict[str, object]:
    """Returns the document of a node's entry."""
    return {
        "machine": entry.record.machine,
        "instance": entry.record.instance,
        "epoch": entry.record.epoch,
        "fenced": entry.record.is_fenced,
        "name": entry.name,
        "addresses": [format_ip(address) for address in entry.addresses],
        "networks": [str(network) for network in entry.networks],
        "registered": entry.registered,
    }


def parse_entry(document: Document) -> NodeEntry:
    """Returns the entry in a document; raises ValueError, whose text names the key."""
    is_fenced = document.get("fenced")
    if not isinstance(is_fenced, bool):
        raise ValueError(f'"fenced" {is_fenced!r} is neither true nor false')
    machine, instance, epoch = (_text(document, key) for key in ("machine", "instance", "epoch"))
    record = NodeRecord(machine, instance, epoch, is_fenced)
    return NodeEntry(
        record,
        _text(document, "name"),
        tuple(map(parse_ip, _texts(document, "addresses"))),
        tuple(map(ip_network, _texts(document, "networks"))),
        _text(document, "registered"),
    )


def encode(document: Document) -> bytes:
    """Returns a document as the bytes that a store keeps."""
    return json.dumps(document, separators=(",", ":")).encode()


def decode(raw: bytes) -> Document:
    """Returns the JSON object that the bytes encode; raises ValueError for anything else."""
    try:
        document: object = json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    return document


def stored_space(name: str, raw: bytes, read: Callable[[bytes], Document] = decode) -> Stored[Space | None]:
    """Returns the stored space, None without an object; raises ValueError if it is not valid."""
    if not raw:
        return Stored(None)
    try:
        return Stored(parse_space(read(raw)), raw)
    except ValueError as error:
        raise ValueError(f"space {name} is not valid: {error}") from None


def stored_block(block: Network, raw: bytes, read: Callable[[bytes], Document] = decode) -> Stored[BlockRecord]:
    """Returns the stored block, FREE without an object; `read` returns the document in the store's form `raw`."""
    if not raw:
        return Stored(FREE)
    stored = _stored(f"block {block}", raw, read, parse_block, DAMAGED_BLOCK, _BLOCK_FIX)
    return stored if stored.problem else stored._replace(note=parse_note(read(raw)))


def stored_entry(node: str, raw: bytes, read: Callable[[bytes], Document] = decode) -> Stored[NodeEntry]:
    """Returns the stored entry; `raw` is not empty."""
    return _stored(f"entry of node {node}", raw, read, parse_entry, DAMAGED_ENTRY, _ENTRY_FIX)


def names_owner(raw: bytes, owner: str, read: Callable[[bytes], Document] = decode) -> bool:
    """Returns whether the object of a block has this owner, also if the rest of it is not valid."""
    try:
        return read(raw).get("owner") == owner
    except ValueError:
        return False


def problems_of(objects: Mapping[str, bytes], read: Callable[[bytes], Document] = decode) -> list[str]:
    """Returns a text for each invalid object of a space; the keys are such as "blocks/0a160040-26"."""
    return [problem for key, raw in sorted(objects.items()) if (problem := _problem_of(key, raw, read))]


def _problem_of(key: str, raw: bytes, read: Callable[[bytes], Document]) -> str:
    kind, _, name = key.partition("/")
    try:
        match kind:
            case "blocks":
                return stored_block(parse_block_name(name), raw, read).problem
            case "nodes":
                return stored_entry(check_node(name), raw, read).problem
            case "space":
                stored_space(name, raw, read)
                return ""
            case _:
                return ""
    except ValueError as error:
        fix = "correct it" if kind == "space" else "delete it: no agent uses it"
        return f"object {key} is not valid: {error}; fix: {fix}"


def _stored(
    described: str, raw: bytes, read: Callable[[bytes], Document], parse: Callable[[Document], T], damaged: T, fix: str
) -> Stored[T]:
    try:
        return Stored(parse(read(raw)), raw)
    except ValueError as error:
        return Stored(damaged, raw, f"{described} is not valid: {error}; fix: {fix}")


def _text(document: Document, key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not _TEXT.fullmatch(value):
        raise ValueError(f'"{key}" is not a text of at most 256 ASCII characters without <, > and &')
    return value


def _texts(document: Document, key: str) -> list[str]:
    value = document.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f'"{key}" is not a list of texts')
    return value
