"""CHECK: what is compared of the limits, and the words for what is wrong.

One rule: the reference's numbers are as good as ours, and so is its ifb.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from cni.errors import CniError, Code
from kernel import htb, traffic
from kernel.link import Link
from kernel.rtnl import Socket
from kernel.traffic import HTB, Bucket, Filter, Qdisc, Rule
from kernel.wire import DecodedMessage
from plugins.bandwidth.shaper import Limits
from plugins.bandwidth.subnets import EVERYWHERE, Subnets
from process.values import replace

_AGAIN = "remove the container and create it again"
_NONE: Mapping[int, DecodedMessage | None] = MappingProxyType({})


def check_ingress(found: Limits, outside: Link, accepted: Collection[Bucket]) -> None:
    """Checks the limit of what the pod receives; raises CniError(999)."""
    _check_bucket(found.root, f'what the pod receives is not limited on "{outside.name}"', accepted)


def check_classes(host: Socket, found: Limits, outside: Link, subnets: Subnets) -> Limits:
    """Checks which of what the pod receives is limited; returns `found` with that bucket, for `check_ingress`.

    Raises CniError(999), KernelError.
    """
    root = found.root
    if root is None or not root.is_shaper or root.kind != HTB:
        return replace(found, root=root and replace(root, bucket=None))
    _check_rules("receives", subnets.incoming, traffic.list_filters(host, outside.index, root.handle))
    return replace(found, root=replace(root, bucket=htb.get_bucket(host, outside.index)))


def check_egress(
    host: Socket,
    found: Limits,
    outside: Link,
    accepted: Collection[Bucket],
    subnets: Subnets = EVERYWHERE,
    roots: Mapping[int, DecodedMessage | None] = _NONE,
) -> None:
    """Checks the limit of what the pod sends, and that all of it, or of subnets, is led there.

    `roots` are answers of the kernel that are there already, by ifindex. Raises CniError(999), KernelError.
    """
    if not found.ifbs:
        raise _wrong("get ifb device: Link not found", f"what the pod sends is not limited; {_AGAIN}")
    (ifb, *_) = found.ifbs
    _check_rules("sends", subnets.outgoing(ifb.index), [item for item in found.filters if item.rule])
    hint = _astray(found.filters, ifb)
    if subnets.only:
        hint = "" if hint else "not only what goes to the subnets is"
    if hint:
        raise _wrong(f'what "{outside.name}" receives is not led to "{ifb.name}"', f"{hint}; {_AGAIN}")
    if not ifb.is_up:
        raise _wrong(f"Interface {ifb.name} is down", f'set it up: ip link set "{ifb.name}" up')
    root = roots[ifb.index] if ifb.index in roots else host.get(traffic.get_root_request(ifb.index))[0]
    _check_bucket(traffic.qdisc_from_answer(root), f'what the pod sends is not limited on "{ifb.name}"', accepted)


def _astray(filters: Sequence[Filter], ifb: Link) -> str:
    """Returns why not all that the host's end receives comes to the ifb, "" when it does."""
    ours = next((item for item in filters if item.matches_all and item.target == ifb.index), None)
    if ours is None:
        return "no filter of ingress does that"
    in_front = filters[: filters.index(ours)]
    taken = any(item.matches_all and (item.info != ours.info or item.table == ours.table) for item in in_front)
    return "a filter of ingress in front of that takes everything" if taken else ""


def _check_rules(does: str, wanted: Sequence[Rule], filters: Sequence[Filter]) -> None:
    found = {item.rule for item in filters}
    missing, further = len(set(wanted) - found), len(found.difference(wanted))
    if missing or further:
        details = f"{missing} filters of {len(wanted)} are missing or changed, {further} are there besides; {_AGAIN}"
        raise _wrong(f"the subnets of what the pod {does} don't match", details)


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
