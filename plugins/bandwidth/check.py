"""CHECK: what is compared of the limits, and the words for what is wrong.

One rule: the reference's numbers are as good as ours, and so is its ifb.
"""

from __future__ import annotations

from collections.abc import Collection

from cni.errors import CniError, Code
from kernel import traffic
from kernel.link import Link
from kernel.rtnl import Socket
from kernel.traffic import Bucket, Qdisc
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
    first = next((item for item in found.filters if item.matches_all or item.target is None), None)
    if first is None or first.target != ifb.index:
        hint = "no filter of ingress does that" if first is None else "a filter of ingress leads it elsewhere"
        raise _wrong(f'what "{outside.name}" receives is not led to "{ifb.name}"', f"{hint}; {_AGAIN}")
    if not ifb.is_up:
        raise _wrong(f"Interface {ifb.name} is down", f'set it up: ip link set "{ifb.name}" up')
    (root,) = host.get(traffic.root(ifb.index))
    _check_bucket(traffic.qdisc(root), f'what the pod sends is not limited on "{ifb.name}"', accepted)


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
