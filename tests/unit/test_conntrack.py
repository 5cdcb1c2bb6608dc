"""The filter with which UDP flows are listed, and the flows that portmap deletes."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest

from kernel import route
from kernel.codec_netfilter import ConntrackMessage
from kernel.errors import KernelError
from kernel.netfilter import conntrack
from kernel.netfilter.conntrack import TrackedFlow
from kernel.netfilter.nft import NftSocket
from kernel.rtnl import Request
from kernel.wire import decode
from plugins.portmap import conntrack as flows
from plugins.portmap.conf import HostPorts, PortMapping

POD = {4: ip_interface("10.22.0.2/16"), 6: ip_interface("fd00:22::2/64")}
LOCAL = {4: [ip_network("192.0.2.1/32"), ip_network("127.0.0.0/8")], 6: [ip_network("2001:db8::1/128")]}


class Recorder(NftSocket):
    """A socket that records its requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def dump(self, request, **_options):
        self.requests.append(request)
        return []

    def change(self, *requests, **_options):
        self.requests += requests


@pytest.mark.parametrize(("ports", "flags"), [({53}, 0b101000), ({53, 54}, 0b001000)])
def test_the_kernel_filters_flows(ports, flags):
    """The request has a filter for UDP, and for the port if there is only one."""
    recorder = Recorder()
    conntrack.list_udp_flows(recorder, 4, ports)
    (request,) = recorder.requests
    message_sent = decode(ConntrackMessage, request.encode(1))
    assert message_sent.get_attr("CTA_FILTER").get_attr("CTA_FILTER_ORIG_FLAGS") == flags
    filtered = message_sent.get_attr("CTA_TUPLE_ORIG").get_attr("CTA_TUPLE_PROTO")
    assert filtered.get_attr("CTA_PROTO_NUM") == 17
    assert filtered.get_attr("CTA_PROTO_DST_PORT") == (53 if len(ports) == 1 else None)


def to(destination, port=53):
    """Returns a flow to an address."""
    source = "2001:db8::7" if ":" in destination else "198.51.100.7"
    return TrackedFlow(ip_address(source), 40000, ip_address(destination), port, 1)


FLOWS = [
    to(ip, port) for ip in ("192.0.2.1", "127.0.0.1", "8.8.8.8", "2001:db8::1", "2001:db8::8") for port in (53, 54)
]


@pytest.mark.parametrize(
    ("mappings", "addresses", "deleted"),
    [
        ([PortMapping(53, 80, "udp")], POD, {("192.0.2.1", 53), ("127.0.0.1", 53), ("2001:db8::1", 53)}),
        ([PortMapping(53, 80, "udp")], {4: POD[4]}, {("192.0.2.1", 53), ("127.0.0.1", 53)}),
        ([PortMapping(53, 80, "udp")], {}, {("192.0.2.1", 53), ("127.0.0.1", 53), ("2001:db8::1", 53)}),
        ([PortMapping(53, 80, "udp", ip_address("127.0.0.1"))], POD, {("127.0.0.1", 53)}),
        ([PortMapping(53, 80, "udp", ip_address("8.8.8.8"))], POD, {("8.8.8.8", 53)}),
        ([PortMapping(53, 80, "udp", ip_address("::"))], POD, {("2001:db8::1", 53)}),
        (
            [PortMapping(53, 80, "udp", ip_address("127.0.0.1")), PortMapping(54, 80, "udp")],
            {4: POD[4]},
            {("127.0.0.1", 53), ("192.0.2.1", 54), ("127.0.0.1", 54)},
        ),
        ([PortMapping(53, 80, "tcp"), PortMapping(54, 80, "sctp")], POD, set()),
    ],
)
def test_flows_to_udp_host_ports_are_deleted(monkeypatch, mappings, addresses, deleted):
    """Flows to a UDP mapping's address are deleted, or to all of the host's addresses if it has none, and no others."""
    flows_deleted: list[TrackedFlow] = []
    monkeypatch.setattr(
        conntrack,
        "list_udp_flows",
        lambda _, version, ports: [
            flow for flow in FLOWS if flow.port in ports and flow.destination.version == version
        ],
    )
    monkeypatch.setattr(conntrack, "delete_flows", lambda _, entries: flows_deleted.extend(entries))
    monkeypatch.setattr(route, "list_local_networks", lambda _, version: LOCAL[version])
    flows.delete_flows_with_socket(Recorder(), HostPorts("net", "cid", "eth0", tuple(mappings), addresses))
    assert {(str(flow.destination), flow.port) for flow in flows_deleted} == deleted


def test_a_failure_is_printed_in_one_line(monkeypatch, capsys):
    """If the kernel refuses a request, the verb prints this to stderr and succeeds."""

    def refused(*_):
        raise KernelError("list the tracked UDP flows", 1)

    monkeypatch.setattr(conntrack, "list_udp_flows", refused)
    host_ports = HostPorts("net", "cid", "eth0", (PortMapping(53, 80, "udp"),), POD)
    flows.delete_flows_with_socket(Recorder(), host_ports)
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", refused)
    flows.delete_flows(host_ports)
    warning = "portmap: UDP flows may continue to their previous destination"
    expected = f"{warning}: list the tracked UDP flows: operation not permitted"
    assert capsys.readouterr().err.splitlines() == [expected] * 2


def test_without_udp_no_socket_is_opened(monkeypatch):
    """Mappings of other protocols open no socket."""
    monkeypatch.setattr("kernel.netfilter.nft.open_socket", lambda: pytest.fail("opened"))
    flows.delete_flows(HostPorts("net", "cid", "eth0", (PortMapping(53, 80, "tcp"),), POD))
