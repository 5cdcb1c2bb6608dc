"""Owners of iptables-legacy rules, read from the listing of its program, since netlink does not list them."""

import pytest

from attachment.masquerade import backend as masquerade
from attachment.masquerade.names import MASQUERADE_CHAINS
from cni.conf import Attachment
from kernel.netfilter import iptables
from kernel.netfilter.iptables_rule import Listing, comment_match, quoted
from plugins.firewall import iptables_rules
from plugins.firewall import rule_listing as firewall
from plugins.portmap import host_port_listing as portmap
from plugins.portmap.iptables_rules import DNAT_CHAINS

ATTACHMENT = Attachment("cid", "eth0")


def listing():
    """Returns the relevant chains and rules of both tables."""
    masquerading, ports = (scheme.name("net", "cid") for scheme in (MASQUERADE_CHAINS, DNAT_CHAINS))
    comments = (quoted(scheme.comment("net", "cid")) for scheme in (MASQUERADE_CHAINS, DNAT_CHAINS))
    first, second = (f"-m comment --comment {comment}" for comment in comments)
    cut = f'-m comment --comment "name: \\"net\\" id: \\"{"x" * 200}"'
    lines = [
        "-P POSTROUTING ACCEPT",
        f"-A POSTROUTING -s 10.22.0.2/32 {first} -j {masquerading}",
        f"-A POSTROUTING -s 10.22.0.3/32 {cut} -j CNI-0123456789abcdef01234567",
        "-A POSTROUTING -j CNI-HOSTPORT-MASQ",
        f"-A CNI-HOSTPORT-DNAT -p tcp {second} -m multiport --dports 8080,8081 -j {ports}",
        f"-A CNI-FORWARD-OWNERS -s 10.22.0.2/32 {comment_match(iptables_rules.owner_text('net', ATTACHMENT))}",
    ]
    return Listing.parse("\n".join(lines))


@pytest.fixture(autouse=True)
def legacy(monkeypatch):
    """Makes the readers see iptables-legacy tables with the rules above."""
    monkeypatch.setattr(iptables, "get_legacy_families", lambda table: [4])
    monkeypatch.setattr(iptables, "read", lambda families, table, *, legacy: {4: listing()} if legacy else {})


def test_masquerade_rules_name_their_container():
    """A jump names its container, or only its chain if the comment was cut."""
    named, cut = masquerade.list_legacy_owned_rules()
    assert (named.network, named.container_id) == ("net", "cid")
    assert named.owner_key in masquerade.owner_keys("net", ATTACHMENT)
    assert (cut.container_id, cut.owner_key) == ("", b"CNI-0123456789abcdef01234567")


def test_host_ports_are_listed_individually():
    """Each port of a jump is listed with its protocol and its container."""
    rules = portmap.list_host_ports_legacy()
    assert [(item.subject, item.container_id) for item in rules] == [("8080/tcp", "cid"), ("8081/tcp", "cid")]
    assert {item.owner_key for item in rules} <= set(portmap.owner_keys("net", ATTACHMENT))


def test_firewall_records_name_the_attachment():
    """A record of the firewall plugin names network, container, interface and address."""
    (rule,) = firewall.list_legacy_owned_rules()
    assert (rule.network, rule.container_id, rule.ifname, rule.subject) == ("net", "cid", "eth0", "10.22.0.2")
    assert rule.owner_key in firewall.owner_keys("net", ATTACHMENT)
