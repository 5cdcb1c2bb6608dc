"""Results as values of Go's type (ipam.dhcp.rpc_result): any result, and malformed values."""

from ipaddress import ip_interface

import pytest
from hypothesis import given

from cni.result import IPConfig, Result
from ipam.dhcp import gob, rpc, rpc_result
from ipam.dhcp.gob import Malformed, Struct
from process.values import replace
from tests.unit.test_cni_result import RESULTS


def for_go(result: Result) -> Result:
    """Returns a result without what Go's type has not: zeros of pointers, negative indexes."""
    ips = tuple(replace(ip, interface=max(ip.interface or 0, 0) or None) for ip in result.ips)
    routes = tuple(replace(route, table=route.table or None, scope=route.scope or None) for route in result.routes)
    return replace(result, ips=ips, routes=routes)


@given(RESULTS.map(for_go))
def test_any_result_survives_a_reply(result):
    """Every field of a result arrives as it was sent."""
    decoder = gob.Decoder()
    decoder.feed(rpc.Connection().reply(rpc.Call(0, rpc.ALLOCATE, rpc.CallArgs()), result))
    assert decoder.decode() == Struct({"ServiceMethod": rpc.ALLOCATE})
    value = decoder.decode()
    assert value
    assert rpc_result.from_struct(value) == result


def net(address: bytes, mask: bytes) -> Struct:
    return Struct({"IPs": [Struct({"Address": Struct({"IP": address, "Mask": mask})})]})


MAPPED = bytes(10) + b"\xff\xff\x0a\x01\x02\x05"


@pytest.mark.parametrize("mask", [b"\xff\xff\xff\0", b"\xff" * 15 + b"\0"])
@pytest.mark.parametrize("address", [MAPPED[12:], MAPPED])
def test_ipv4_in_16_bytes_is_ipv4(address, mask):
    """Go stores an IPv4 address and its mask in 4 or in 16 bytes."""
    assert rpc_result.from_struct(net(address, mask)).ips == (IPConfig(ip_interface("10.1.2.5/24")),)


@pytest.mark.parametrize(
    "value",
    [
        *(net(b"\1\2\3\4", mask) for mask in (b"", b"\xff\0\xff\0", b"\0\0\0\1", b"\xff" * 5, b"\0" * 16)),
        net(b"\1\2\3\4", b"\0" + b"\xff" * 15),
        *(net(address, b"\xff" * 4) for address in (bytes(15) + b"\1", b"\1\2\3", b"")),
        *(Struct({"IPs": [Struct({})]}), Struct({"IPs": b"abc"})),
        Struct({"Routes": [Struct({**net(b"\1\2\3\4", b"\xff" * 4).structs("IPs")[0].fields})]}),
        Struct({"Interfaces": [Struct({"Mtu": -1})]}),
    ],
)
def test_malformed_results_are_refused(value):
    """A result with an address, mask or number that is none is Malformed."""
    with pytest.raises(Malformed):
        rpc_result.from_struct(value)
