"""Limits for a part of the traffic (HTB): filters by address, and a bucket for the packets that they classify.

*_request functions return a Request and do no I/O, as in kernel.traffic.
"""

from __future__ import annotations

import struct

from cni.address import Network
from kernel import traffic
from kernel.rtnl import Request, Socket
from kernel.traffic import HTB, HTB_HANDLE, LIMITED, ROOT, TBF, TBF_QOPT, UINT32_MAX, Bucket
from kernel.wire import Attributes

RTM_NEWTCLASS, RTM_GETTCLASS = 40, 42

QUEUE_HANDLE = 0x70780000  # of the class's queue, which passes everything
_UNLIMITED = 1 << 50  # bytes/s: so fast that a packet takes no time
_VERSION, _RATE_TO_QUANTUM = 3, 10  # TC_HTB_PROTOVER, which the kernel checks; the kernel's default, not used
_QUANTUM = 1 << 16  # bytes that a class sends per turn; with one class the value does not matter
_DIRECT_PACKETS = 1000  # queue length for packets past the bucket, instead of the interface's queue length
_GLOB = struct.Struct("=5I")  # struct tc_htb_glob: version, rate2quantum, defcls, debug, direct_pkts
# struct tc_htb_opt: of rate and ceil (struct tc_ratespec) only the bytes/s, then buffer, cbuffer, quantum, level, prio.
_CLASS = struct.Struct("=8xI8xI5I")
_OFFSET = struct.Struct("=I")
_SOURCE = {4: 12, 6: 8}  # offsets of the addresses in the IP header
_DESTINATION = {4: 16, 6: 24}
_WORD = 4


def selector(network: Network, *, source: bool) -> bytes:
    """Returns the selector of IP packets from (`source`) or to a network.

    It also compares the IP version at the start of the header, so packets of other protocols do not match.
    """
    at = (_SOURCE if source else _DESTINATION)[network.version]
    keys = [_key(b"\xf0\0\0\0", bytes((network.version << 4, 0, 0, 0)), 0)]
    mask, value = network.netmask.packed, network.network_address.packed
    for start in range(0, len(mask), _WORD):
        part = slice(start, start + _WORD)
        if any(mask[part]):
            keys.append(_key(mask[part], value[part], at + start))
    return traffic.selector(keys)


def create_requests(index: int, bucket: Bucket, default: int) -> list[Request]:
    """Returns requests that make HTB the root qdisc: class LIMITED has the bucket, PASSED packets are not limited.

    `default` is the number of the class for packets that no filter matches, 0 for PASSED. EEXIST when another root was
    set. The queue of the class is a token bucket filter with an unlimited rate, because it splits packets larger than
    the bucket. A plain queue would drop them, and TCP would hardly progress.
    """
    glob = _GLOB.pack(_VERSION, _RATE_TO_QUANTUM, default, 0, 0)
    root: Attributes = [("TCA_HTB_INIT", glob), ("TCA_HTB_DIRECT_QLEN", _DIRECT_PACKETS)]
    rate = min(bucket.rate, UINT32_MAX)
    parms: Attributes = [("TCA_HTB_PARMS", _CLASS.pack(rate, rate, bucket.size, bucket.size, _QUANTUM, 0, 0))]
    if bucket.rate > UINT32_MAX:
        parms += [("TCA_HTB_RATE64", bucket.rate), ("TCA_HTB_CEIL64", bucket.rate)]
    queue: Attributes = [("TCA_TBF_PARMS", TBF_QOPT.pack(UINT32_MAX, bucket.limit, 0, 0))]
    queue += [("TCA_TBF_RATE64", _UNLIMITED), ("TCA_TBF_BURST", min(bucket.capacity, UINT32_MAX))]
    new, request = traffic.RTM_NEWQDISC, traffic.qdisc_request
    return [
        request("create qdisc", new, index, (HTB, ROOT, HTB_HANDLE), {"attrs": root}),
        request("create class", RTM_NEWTCLASS, index, (HTB, HTB_HANDLE, LIMITED), {"attrs": parms}),
        request("create qdisc", new, index, (TBF, LIMITED, QUEUE_HANDLE), {"attrs": queue}),
    ]


def get_bucket(socket: Socket, index: int) -> Bucket | None:
    """Returns the bucket of an HTB root that create_requests() created; None for another one. Raises KernelError."""
    htb_class, queue_answer = socket.get(
        traffic.get_qdisc_request(index, 0, RTM_GETTCLASS, LIMITED), traffic.get_qdisc_request(index, LIMITED)
    )
    queue = traffic.qdisc_from_answer(queue_answer)
    options = htb_class and htb_class.get_attr("TCA_KIND") == HTB and htb_class.get_attr("TCA_OPTIONS")
    parms = options and options.get_attr("TCA_HTB_PARMS")
    if not parms or len(parms) < _CLASS.size or not queue or not queue.bucket or queue.bucket.rate != _UNLIMITED:
        return None
    rate, ceil, size, ceil_size, *_ = _CLASS.unpack_from(parms)
    rate, ceil = options.get_attr("TCA_HTB_RATE64") or rate, options.get_attr("TCA_HTB_CEIL64") or ceil
    # podwire's buckets have equal rates and equal sizes.
    return Bucket(rate, size, queue.bucket.limit) if (rate, size) == (ceil, ceil_size) else None


def list_limits(socket: Socket) -> dict[int, int]:
    """Returns the rates (bytes/s) of all limits of podwire and the reference plugins by ifindex; raises KernelError."""
    rates = {}
    for index, root in traffic.list_shaper_roots(socket).items():
        bucket = root.bucket or get_bucket(socket, index)
        if bucket:
            rates[index] = bucket.rate
    return rates


def _key(mask: bytes, value: bytes, at: int) -> bytes:
    return mask + value + _OFFSET.pack(at) + bytes(_WORD)
