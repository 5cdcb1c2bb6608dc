"""`conflictDetection`: ADD asks the network whether another host uses the pod's IPv4 address (RFC 5227).

The kernel does the same for IPv6 addresses (RFC 4862), and every ADD waits for that.

An answer to a probe (kernel/arp.py) ends the wait. The interface has no address yet, so the answers for an ipvlan
interface arrive on its master: the probes are sent from there.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import nullcontext
from ipaddress import IPv4Address

from attachment.sandbox import Sandbox, attachment_ips
from cni.address import format_mac
from cni.errors import internal
from cni.keys import BOOLEAN, Key
from cni.result import Result
from kernel import arp, link
from kernel.link import Link
from kernel.netns import Netns, entered
from kernel.rtnl import Deadline, wait_readable
from process import record

KEY = Key("conflictDetection", (BOOLEAN,))

_PACKET_BYTES = 1500


def refuse_conflicts(sandbox: Sandbox, container_link: Link, result: Result) -> None:
    """Raises CniError(999) if another host uses an IPv4 address of `result`; takes four to six seconds otherwise.

    The interface is down before and after. Raises KernelError, OSError, CniError(8).
    """
    probed = _probed_addresses(sandbox, result)
    if probed:
        sandbox.socket.change(link.set_request(container_link, up=True))
        _refuse_used(sandbox.namespace, container_link, probed)
        # The kernel announces the addresses when the interface comes up.
        sandbox.socket.change(link.set_request(container_link, up=False))


def refuse_conflicts_on_master(sandbox: Sandbox, master: Link, result: Result, *, in_container: bool) -> None:
    """Raises CniError(999) if another host uses an IPv4 address of an ipvlan interface; probes from its master.

    Both have the same MAC address. `master` is up, with `in_container` in the sandbox. Raises KernelError, OSError,
    CniError(8).
    """
    probed = _probed_addresses(sandbox, result)
    if probed:
        _refuse_used(sandbox.namespace if in_container else None, master, probed)


def _probed_addresses(sandbox: Sandbox, result: Result) -> dict[bytes, IPv4Address]:
    ips = (ip.address.ip for ip in attachment_ips(result, sandbox.ifname))
    return {} if record.is_dry_run() else {ip.packed: ip for ip in ips if isinstance(ip, IPv4Address)}


def _refuse_used(namespace: Netns | None, prober: Link, probed: Mapping[bytes, IPv4Address]) -> None:
    """Sends probes from `prober`, a link in `namespace` or the current one; raises CniError(999) for an answer."""
    with entered(namespace) if namespace else nullcontext():
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
        packets = socket.socket(socket.AF_PACKET, kind, socket.htons(arp.ETH_P_ARP))
    with packets, record.timed_step("detect address conflicts"):
        packets.bind((prober.name, arp.ETH_P_ARP))
        for number in range(1, arp.PROBES + 1):
            for packed in probed:
                probe = arp.build_probe(prober.mac_bytes, packed)
                packets.sendto(probe, (prober.name, arp.ETH_P_ARP, 0, 0, arp.BROADCAST))
            _refuse_answers(packets, prober, probed, arp.compute_wait_s(number))


def _refuse_answers(packets: socket.socket, prober: Link, probed: Mapping[bytes, IPv4Address], wait_s: float) -> None:
    """Reads ARP packets for `wait_s` seconds; raises CniError(999) for one of another host that uses an address."""
    deadline = Deadline(wait_s)
    while (remaining_s := deadline.remaining_s()) and wait_readable([packets.fileno()], remaining_s):
        conflict = arp.find_conflict(packets.recv(_PACKET_BYTES), prober.mac_bytes, probed)
        if conflict:
            details = "remove the address there, or exclude it from the IPAM range; host-local's next ADD tries another"
            raise internal(f"address {probed[conflict.address]} is in use by {format_mac(conflict.mac)}", details)
