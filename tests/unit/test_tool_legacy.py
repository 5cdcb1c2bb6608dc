"""Whose the rules of iptables-legacy are, by what its program lists: there is no netlink for them."""

import pytest

from attachment.masquerade import backend as masquerade
from attachment.masquerade.names import CHAINS as MASQUERADE_CHAINS
from cni.conf import Attachment
from kernel.netfilter import iptables
from kernel.netfilter.iptables_chains import quoted
from plugins.firewall import iptables_rules
from plugins.firewall import rule_listing as firewall
from plugins.portmap import host_port_listing as portmap
from plugins.portmap.iptables_rules import CHAINS as PORT_CHAINS

ATTACHMENT = Attachment("cid", "eth0")


def listing():
    """Returns what `-S` prints of both tables, as far as it matters here."""
    masquerading, ports = (kind.name("net", "cid") for kind in (MASQUERADE_CHAINS, PORT_CHAINS))
    comments = (quoted(kind.comment("net", "cid")) for kind in (MASQUERADE_CHAINS, PORT_CHAINS))
    first, second = (f"-m comment --comment {comment}" for comment in comments)
    cut = f'-m comment --comment "name: \\"net\\" id: \\"{"x" * 200}"'
    return [
        "-P POSTROUTING ACCEPT",
        f"-A POSTROUTING -s 10.22.0.2/32 {first} -j {masquerading}",
        f"-A POSTROUTING -s 10.22.0.3/32 {cut} -j CNI-0123456789abcdef01234567",
        "-A POSTROUTING -j CNI-HOSTPORT-MASQ",
        f"-A CNI-HOSTPORT-DNAT -p tcp {second} -m multiport --dports 8080,8081 -j {ports}",
        f"-A CNI-FORWARD-OWNERS -s 10.22.0.2/32 {iptables_rules.owner_comment('net', ATTACHMENT)}",
    ]


@pytest.fixture(autouse=True)
def legacy(monkeypatch):
    """Has iptables-legacy made the tables, with the rules above."""
    monkeypatch.setattr(iptables, "get_legacy_families", lambda table: [4])
    monkeypatch.setattr(iptables, "read", lambda families, table, *, legacy: {4: listing()} if legacy else {})


def test_masquerade_rules_are_the_container_s():
    """A jump names its container; of one whose comment was cut only the chain is told."""
    named, cut = masquerade.list_legacy_owned_rules()
    assert (named.network, named.container_id) == ("net", "cid")
    assert named.owner_key in masquerade.owner_keys("net", ATTACHMENT)
    assert (cut.container_id, cut.owner_key) == ("", b"CNI-0123456789abcdef01234567")


def test_host_ports_are_told_one_by_one():
    """Each port of an entry is told with its protocol and its container."""
    found = portmap.list_host_ports_legacy()
    assert [(item.about, item.container_id) for item in found] == [("8080/tcp", "cid"), ("8081/tcp", "cid")]
    assert {item.owner_key for item in found} <= set(portmap.owner_keys("net", ATTACHMENT))


def test_firewall_records_name_the_attachment():
    """A record of the firewall's tells network, container, interface and address."""
    (found,) = firewall.list_legacy_owned_rules()
    assert (found.network, found.container_id, found.ifname, found.about) == ("net", "cid", "eth0", "10.22.0.2")
    assert found.owner_key in firewall.owner_keys("net", ATTACHMENT)
