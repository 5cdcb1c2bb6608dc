"""The custom resource IPSpace: its spec requests pools, its status has the pools in effect. Pure.

One rule: people write the spec, with `kubectl apply` or `podwire ipam pools --set`; agents write the status, after
admin_changes has checked the spec. Agents allocate from the pools of the status, so a spec that is refused changes
nothing.

    spec    {"pools": [...]}
    status  {"epoch": "k3v9...", "pools": [...], "conditions": [{"type": "Accepted", "status": "False",
             "reason": "Refused", "message": "pool default loses block ...", "observedGeneration": 3, ...}]}
"""

from __future__ import annotations

import re
from typing import NamedTuple

from agent.api_object import Document, object_at, objects_at
from agent.pools import documents
from agent.pools.space import Pool, Space, format_space, parse_space
from agent.pools.store import Stored

ACCEPTED, REFUSED, STORE_LOST = "Accepted", "Refused", "StoreLost"  # reasons of the condition
_CONDITION = "Accepted"
_NOT_PLAIN = re.compile(r"[^ -%'-;=?-~]")  # see _TEXT in documents.py: a compare-and-swap tests the status
_MAX_MESSAGE = 1000


class PoolsRequest(NamedTuple):
    """The spec of an object and the agents' decision about it: reason and message, "" before there is one."""

    uid: str
    document: Document
    reason: str
    message: str


def raw_of(document: Document) -> bytes:
    """Returns the stored form of an object: its parts that a change tests, and the spec."""
    fields = object_at(document, "metadata")
    parts = {"uid": fields.get("uid"), "generation": fields.get("generation")}
    return documents.encode({**parts, "status": document.get("status") or {}, "spec": document.get("spec")})


def stored_space(name: str, raw: bytes) -> Stored[Space | None]:
    """Returns the space in effect, None without one; `problem` is why the pools of the spec are refused.

    Raises ValueError if the status is not valid.
    """
    if not raw:
        return Stored(None)
    stored = documents.stored_space(name, raw, document_in_effect) if document_in_effect(raw) else Stored(None, raw)
    return stored._replace(problem=refusal_of(name, raw))


def refusal_of(name: str, raw: bytes) -> str:
    """Returns why the pools of an object's spec are refused, "" if they are not."""
    request = request_of(raw)
    return f"IPSpace {name}: {request.message}" if request.reason not in ("", ACCEPTED) else ""


def document_in_effect(raw: bytes) -> Document:
    """Returns the document of the space in effect, an empty one if no pools have been accepted."""
    status = object_at(documents.decode(raw), "status")
    return {key: status[key] for key in ("epoch", "pools")} if {"epoch", "pools"} <= status.keys() else {}


def request_of(raw: bytes) -> PoolsRequest:
    """Returns the request of an object."""
    document, condition = documents.decode(raw), _condition_of(raw)
    is_current = condition.get("observedGeneration") == document.get("generation")
    reason, message = (str(condition.get(key, "")) if is_current else "" for key in ("reason", "message"))
    return PoolsRequest(str(document.get("uid")), object_at(documents.decode(raw), "spec"), reason, message)


def requests_pools(raw: bytes, pools: tuple[Pool, ...]) -> bool:
    """Returns whether the spec requests these pools, in whatever form."""
    try:
        return parse_space({"pools": object_at(documents.decode(raw), "spec").get("pools")}).pools == pools
    except ValueError:
        return False


def status_of(raw: bytes, space: Space | None, time_text: str, reason: str = "", message: str = "") -> Document:
    """Returns the status with a space in effect; without a new decision (`reason`) it keeps the existing condition."""
    before = _condition_of(raw)
    if not reason and space and requests_pools(raw, space.pools):
        reason, message = ACCEPTED, "the pools are in effect"
    condition: Document = before
    if reason:
        value = "True" if reason == ACCEPTED else "False"
        is_same = before.get("status") == value
        condition = {
            "type": _CONDITION,
            "status": value,
            "reason": reason,
            "message": plain(message),
            "observedGeneration": documents.decode(raw).get("generation"),
            "lastTransitionTime": before.get("lastTransitionTime") if is_same else time_text,
        }
    effect = format_space(space) if space else {}
    return {**effect, "conditions": [condition] if condition else []}


def plain(message: str) -> str:
    """Returns a message in the characters that all JSON libraries write in the same form, and of limited length."""
    return _NOT_PLAIN.sub("?", message)[:_MAX_MESSAGE]


def _condition_of(raw: bytes) -> Document:
    conditions = objects_at(object_at(documents.decode(raw), "status"), "conditions")
    return next((one for one in conditions if one.get("type") == _CONDITION), {})
