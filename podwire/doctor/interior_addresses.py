"""Checks the addresses of a running pod, and which of them the kernel sends from.

Only IPv4 addresses are compared by their order: for IPv6 the kernel chooses by the rules of RFC 6724.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from cni.address import Cidr
from kernel.link import Link
from podwire.doctor import interior_faults as faults
from podwire.doctor.finding import Finding
from podwire.doctor.interior_pod import InspectedPod
from podwire.doctor.pods import host_addresses


def list_findings(one: InspectedPod, link: Link) -> Iterator[Finding]:
    """Yields the faults of the addresses of a pod's interface."""
    present = [assigned.address for assigned in one.interior.addresses.get(link.index, ())]
    known = [each.ip for each in present]
    foreign = {each: owner for each in present if (owner := _owner(one, each))}
    missing = [ip.address for ip in one.pod.attachment.typed_result.ips if ip.address.ip not in known]
    wrong = one.with_other_prefix(present)
    if missing or wrong:
        lost = f"it has lost {', '.join(map(str, missing))}" if missing else ""
        other = f"it has {', '.join(map(str, wrong))}, with another prefix length than ADD set" if wrong else ""
        also = "".join(f"; it has {each}, the address of {owner}" for each, owner in foreign.items())
        text = f"{', and '.join(text for text in (lost, other) if text)}{also}"
        yield one.finding(faults.ADDRESS, text, one.restore(link, remove=list(foreign)))
        return
    first = _first_of_subnet(one, present)
    for each, owner in foreign.items():
        text = f"it has {each}, the address of {owner}"
        fix = one.inner(f"ip address del {each} dev {quote(one.ifname)}")
        yield one.finding(
            faults.FOREIGN_ADDRESS, text, one.restore(link, remove=[each]) if each == first else fix, causes=False
        )
    if first is not None and first not in foreign:
        text = f"{first} comes before its own address: the kernel uses {first.ip} as source, which ADD did not allocate"
        yield one.finding(faults.FOREIGN_ADDRESS, text, one.restore(link, behind=[first]))


def _owner(one: InspectedPod, address: Cidr) -> str:
    """Returns the other owner of an address that the pod has: another pod or the host, "" without one."""
    if address.ip in one.pod.addresses or address.ip.is_link_local:
        return ""
    owner = one.owners.get(address.ip)
    return f"the pod {owner.name}" if owner else "the host" if address.ip in host_addresses(one.node) else ""


def _first_of_subnet(one: InspectedPod, present: list[Cidr]) -> Cidr | None:
    """Returns the address that the kernel sends from instead of the pod's own, None if it is the pod's own."""
    gateways = [each for each in one.pod.gateways if each.version == 4]
    usable = (each for each in present if any(gateway in each.network for gateway in gateways))
    first = next(usable, None)
    return None if first is None or first.ip in one.pod.addresses else first
