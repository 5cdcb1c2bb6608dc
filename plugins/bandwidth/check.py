"""CHECK of the limits: compares them with the configuration.

One rule: CHECK also accepts the buckets and ifbs that the reference plugin creates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from attachment.prev_result import RECREATE_HINT
from cni.errors import internal
from kernel import htb, traffic
from kernel.link import Link
from kernel.rtnl import Socket
from kernel.traffic import HTB, AddressFilter, Bucket, Filter, Qdisc
from kernel.wire import DecodedMessage
from plugins.bandwidth.shaper import Limits
from plugins.bandwidth.subnets import EVERYWHERE, Subnets
from process.values import replace

_NO_ROOTS: Mapping[int, DecodedMessage | None] = MappingProxyType({})


def check_ingress(limits: Limits, host_veth: Link, accepted: Collection[Bucket]) -> None:
    """Checks the limit of the traffic that the pod receives; raises CniError(999)."""
    _check_bucket(limits.root, f'packets that the pod receives are not limited on "{host_veth.name}"', accepted)


def check_subnet_filters(host: Socket, limits: Limits, host_veth: Link, subnets: Subnets) -> Limits:
    """Checks the subnet filters for packets to the pod; returns `limits` with HTB's bucket, for `check_ingress`.

    Raises CniError(999), KernelError.
    """
    root = limits.root
    if root is None or not root.is_shaper or root.kind != HTB:
        return replace(limits, root=root and replace(root, bucket=None))
    _check_address_filters(
        "receives", subnets.ingress_filters, traffic.list_filters(host, host_veth.index, root.handle)
    )
    return replace(limits, root=replace(root, bucket=htb.get_bucket(host, host_veth.index)))


def check_egress(
    host: Socket,
    limits: Limits,
    host_veth: Link,
    accepted: Collection[Bucket],
    subnets: Subnets = EVERYWHERE,
    roots: Mapping[int, DecodedMessage | None] = _NO_ROOTS,
) -> None:
    """Checks the limit of the traffic that the pod sends, and that every limited packet is redirected to the ifb.

    `roots` contains root qdiscs that were already read, by ifindex. Raises CniError(999), KernelError.
    """
    if not limits.ifbs:
        raise internal(
            "get ifb device: Link not found", f"packets that the pod sends are not limited, or lost; {RECREATE_HINT}"
        )
    (ifb, *_) = limits.ifbs
    _check_address_filters(
        "sends", subnets.egress_filters(ifb.index), [item for item in limits.filters if item.address_filter]
    )
    problem = _redirect_problem(limits.filters, ifb)
    if subnets.only:
        problem = "" if problem else "packets to networks outside the subnets are redirected, too"
    if problem:
        msg = f'packets that "{host_veth.name}" receives are not redirected to "{ifb.name}"'
        raise internal(msg, f"{problem}; {RECREATE_HINT}")
    if not ifb.is_up:
        raise internal(f"Interface {ifb.name} is down", f'bring it up: ip link set "{ifb.name}" up')
    root = roots[ifb.index] if ifb.index in roots else host.get(traffic.get_root_request(ifb.index))[0]
    problem = f'packets that the pod sends are not limited on "{ifb.name}"'
    _check_bucket(traffic.qdisc_from_answer(root), problem, accepted)


def _redirect_problem(filters: Sequence[Filter], ifb: Link) -> str:
    """Returns why not every packet that the host veth receives is redirected to the ifb, "" if every packet is."""
    redirect = next((item for item in filters if item.matches_all and item.target == ifb.index), None)
    if redirect is None:
        return "no ingress filter redirects them"
    earlier = filters[: filters.index(redirect)]
    is_hidden = any(
        item.matches_all and (item.info != redirect.info or item.table == redirect.table) for item in earlier
    )
    return "an earlier ingress filter matches every packet" if is_hidden else ""


def _check_address_filters(verb: str, desired: Sequence[AddressFilter], filters: Sequence[Filter]) -> None:
    existing = {item.address_filter for item in filters}
    missing, extra = len(set(desired) - existing), len(existing.difference(desired))
    if missing or extra:
        details = f"{missing} of {len(desired)} filters are missing or changed, and there are {extra} others"
        raise internal(f"the subnet filters for packets that the pod {verb} don't match", f"{details}; {RECREATE_HINT}")


def _check_bucket(qdisc: Qdisc | None, problem: str, accepted: Collection[Bucket]) -> None:
    """Raises CniError(999) unless the qdisc has an accepted bucket; `problem` goes into `details` if it has none."""
    if qdisc is None or qdisc.bucket is None:
        details = f"{problem}: its root qdisc is {qdisc.kind if qdisc else 'none'}; {RECREATE_HINT}"
        raise internal("Failed to find qdisc", details)
    if qdisc.bucket in accepted:
        return
    desired = next(iter(accepted))
    for field, unit in (("rate", "bytes/s"), ("limit", "bytes"), ("size", "ticks")):
        actual, expected = getattr(qdisc.bucket, field), getattr(desired, field)
        if actual not in {getattr(item, field) for item in accepted}:
            word = "Buffer" if field == "size" else field.capitalize()
            raise internal(f"{word} doesn't match", f"it is {actual} {unit}, not {expected}; {RECREATE_HINT}")
    raise internal("Buffer doesn't match", f"limit and buffer belong to different bursts; {RECREATE_HINT}")
