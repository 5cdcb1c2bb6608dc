"""iptables' rules, changes and listings as values (kernel.netfilter.iptables_rule), and the owners of rules."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attachment.masquerade import backend as masquerade
from attachment.masquerade.names import MASQUERADE_CHAINS
from cni.conf import Attachment
from kernel.netfilter import iptables, iptables_listing, nft, nft_expression, nft_rule
from kernel.netfilter.iptables_expressions import change_request, render_expressions, select_equal
from kernel.netfilter.iptables_rule import ChainList, IptablesChange, IptablesRule, comment_match, quoted
from kernel.netfilter.nft import Table
from plugins.firewall import iptables_rules
from plugins.firewall import rule_listing as firewall
from plugins.portmap import host_port_listing as portmap
from plugins.portmap.iptables_rules import DNAT_CHAINS

RULE = IptablesRule("CNI-a", "-s 10.22.0.2/32 -j ACCEPT")
TEXTS = st.text(
    st.characters(min_codepoint=0x20, exclude_characters="\x7f", exclude_categories=["Cs", "Cc"]), min_size=1
)


def test_a_listing_has_the_rules_of_each_chain():
    """A listing has built-in and other chains, with their rules in order, and ignores other lines."""
    listing = ChainList.parse(
        f"-P POSTROUTING ACCEPT\n-N CNI-a\n# comment\n-A POSTROUTING -j CNI-a\n{RULE}\n-A CNI-a\n"
    )
    assert list(listing.chains) == ["POSTROUTING", "CNI-a"]
    assert listing.rules("CNI-a") == [RULE, IptablesRule("CNI-a", "")]
    assert RULE in listing
    assert IptablesRule("CNI-b", RULE.spec) not in listing
    assert listing.rules("CNI-b") == []
    assert listing.jumps_to("CNI-a") == ["POSTROUTING"]
    assert listing | ChainList.of(["CNI-a"], [RULE]) == ChainList.parse(
        f"-P POSTROUTING ACCEPT\n-A POSTROUTING -j CNI-a\n-N CNI-a\n{RULE}"
    )


@pytest.mark.parametrize(
    ("spec", "target"),
    [
        ("-j ACCEPT", "ACCEPT"),
        ('-m comment --comment " -j x" -g CNI-a', "CNI-a"),
        ('-m comment --comment " -j x"', ""),
        ("-p tcp -j DNAT --to-destination 10.22.0.2:80", ""),
        ("", ""),
    ],
)
def test_target_of_a_rule(spec, target):
    """The target is the last word after -j or -g, and not a part of the comment."""
    assert IptablesRule("CNI-a", spec).target == target


@given(TEXTS)
def test_a_comment_is_parsed_as_its_text(text):
    """Any comment is one word, which is parsed as its text, and does not look like a target or an option."""
    rule = IptablesRule("CNI-a", f"-s 10.22.0.2/32 {comment_match(text)} -j ACCEPT")
    assert (rule.comment, rule.target) == (text, "ACCEPT")
    if not text.startswith("-"):
        assert [name for name, _ in rule.options] == ["-s", "-m comment", "--comment", "-j"]


def test_options_of_a_rule():
    """Options have their values; matches are named by their modules, and inverted options are marked."""
    rule = IptablesRule("CNI-a", '! -o br0 -p tcp -m tcp --tcp-flags SYN,RST SYN -m comment --comment "- ! -x" -j X')
    assert rule.options == [
        *(("! -o", "br0"), ("-p", "tcp"), ("-m tcp", ""), ("--tcp-flags", "SYN,RST SYN")),
        *(("-m comment", ""), ("--comment", '"- ! -x"'), ("-j", "X")),
    ]


NETWORKS = [
    *("0.0.0.0/1", "10.0.0.0/8", "10.22.0.0/15", "10.22.0.2/32"),
    *("fd00::/9", "fd00::/64", "fd00::2/128", "::1.2.3.4/128", "::ffff:10.0.0.0/104"),
]


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_are_parsed(network):
    """A rule of iptables-nft that matches a network is parsed as the rule from which it was rendered."""
    rule = IptablesRule("CNI-a", f"! -s {network} -i br0 {comment_match('a b')} -j ACCEPT")
    version = ip_network(network).version
    rendered = render_expressions(version, rule.spec)
    assert rendered
    assert iptables_listing.parse_rule("CNI-a", nft.NftRule(1, rendered.written(), b""), version) == rule


@pytest.mark.parametrize(
    ("mask", "data", "is_known"),
    [("ffff0000", "0a160000", True), ("ff00ff00", "0a000000", False), ("ffff0000", "0a160001", False)],
)
def test_masks_that_are_no_prefix_are_not_parsed(mask, data, is_known):
    """A mask that is no prefix, and an address with bits outside the prefix, have no network."""
    rendered = render_expressions(4, "-s 10.22.0.0/15 -j ACCEPT")
    assert rendered
    known = rendered.written().replace(bytes.fromhex("fffe0000"), bytes.fromhex(mask))
    changed = known.replace(bytes.fromhex("0a160000"), bytes.fromhex(data))
    assert bool(iptables_listing.parse_rule("CNI-a", nft.NftRule(1, changed, b""), 4)) == is_known


def test_rules_of_other_versions_are_recognised():
    """Newer versions store the comment as userdata, older ones compare the packet mark by an extension."""
    commented = IptablesRule("CNI-a", f"{comment_match('a b')} -j CNI-b")
    end = nft_expression.COUNTER + nft_rule.jump("CNI-b")
    newer = [nft.NftRule(1, end, nft_rule.comment_userdata(text)) for text in ("a b", "a c")]
    assert select_equal(4, commented, newer) == newer[:1]
    assert select_equal(4, IptablesRule("CNI-a", "-j CNI-b"), newer) == []
    marked = IptablesRule("CNI-a", "-m mark --mark 0x2000/0x2000 -j CNI-b")
    infos = [bytes.fromhex(text) for text in ("002000000020000000", "002000000020000001")]
    older = [nft.NftRule(1, nft_expression.extension("match", "mark", 1, info) + end, b"") for info in infos]
    assert select_equal(4, marked, older) == older[:1]


@pytest.mark.parametrize(
    "change", [IptablesChange.flush_chain("CNI-a"), IptablesChange.insert(RULE, 2), IptablesChange.delete(RULE)]
)
def test_changes_that_only_the_program_applies(change):
    """Netlink neither deletes rules nor inserts them elsewhere than at the top: a rule has no handle here."""
    assert change_request(4, Table(2, "nat"), change) is None
    assert change_request(4, Table(2, "nat"), IptablesChange.insert(RULE)) is not None


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
    return ChainList.parse("\n".join(lines))


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
