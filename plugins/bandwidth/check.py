"""CHECK: what is compared of the limits, and the words for what is wrong.

One rule: the reference's numbers are as good as ours, and so is its ifb.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cni.errors import CniError, Code
from kernel import traffic
from kernel.link import Link
from kernel.rtnl import Socket
from kernel.traffic import Bucket, Filter, Qdisc
from plugins.bandwidth.shaper import Limits

_AGAIN = "remove the container and create it again"


def check_ingress(found: Limits, outside: Link, accepted: Collection[Bucket]) -> None:
    """Checks the limit of what the pod receives; raises CniError(999)."""
    _check_bucket(found.root, f'what the pod receives is not limited on "{outside.name}"', accepted)


def check_egress(host: Socket, found: Limits, outside: Link, accepted: Collection[Bucket]) -> None:
    """Checks the limit of what the pod sends, and that all of it is led there; raises CniError(999), KernelError."""
    if not found.ifbs:
        raise _wrong("get ifb device: Link not found", f"what the pod sends is not limited; {_AGAIN}")
    (ifb, *_) = found.ifbs
    if hint := _astray(found.filters, ifb):
        raise _wrong(f'what "{outside.name}" receives is not led to "{ifb.name}"', f"{hint}; {_AGAIN}")
    if not ifb.is_up:
        raise _wrong(f"Interface {ifb.name} is down", f'set it up: ip link set "{ifb.name}" up')
    (root,) = host.get(traffic.root(ifb.index))
    _check_bucket(traffic.qdisc(root), f'what the pod sends is not limited on "{ifb.name}"', accepted)


def _astray(filters: Sequence[Filter], ifb: Link) -> str:
    """Returns why not all that the host's end receives comes to the ifb, "" when it does."""
    ours = next((item for item in filters if item.matches_all and item.target == ifb.index), None)
    if ours is None:
        return "no filter of ingress does that"
    in_front = filters[: filters.index(ours)]
    taken = any(item.matches_all and (item.info != ours.info or item.table == ours.table) for item in in_front)
    return "a filter of ingress in front of that takes everything" if taken else ""


def _check_bucket(found: Qdisc | None, lacking: str, accepted: Collection[Bucket]) -> None:
    if found is None or found.bucket is None:
        details = f"{lacking}: its root qdisc is {found.kind if found else 'none'}; {_AGAIN}"
        raise _wrong("Failed to find qdisc", details)
    if found.bucket in accepted:
        return
    wanted = next(iter(accepted))
    for field, unit in (("rate", "bytes/s"), ("limit", "bytes"), ("size", "ticks")):
        is_, should = getattr(found.bucket, field), getattr(wanted, field)
        if is_ not in {getattr(item, field) for item in accepted}:
            word = "Buffer" if field == "size" else field.capitalize()
            raise _wrong(f"{word} doesn't match", f"it is {is_} {unit}, not {should}; {_AGAIN}")
    raise _wrong("Buffer doesn't match", f"limit and buffer are of different bursts; {_AGAIN}")


def _wrong(msg: str, details: str) -> CniError:
    return CniError(Code.INTERNAL, msg, details)
