"""Masquerade by nftables (attachment.masquerade.nftables): its rules, other writers of them, and real packets."""

from dataclasses import replace
from ipaddress import ip_interface, ip_network

import pytest

from attachment.masquerade import nftables
from attachment.masquerade.spec import Masquerade
from cni.conf import Attachment
from cni.errors import CniError
from kernel.errors import KernelError
from kernel.netfilter import nft
from kernel.netns import Netns, entered
from tests.support import golden
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_nat")

IPV4, IPV6 = ip_interface("10.22.0.2/16"), ip_interface("fd00:22::2/64")
ONE = Masquerade("goldnet", "0123abcdef", "eth0", (IPV4, IPV6))
OTHER = replace(ONE, container_id="other", addresses=(ip_interface("10.22.0.3/16"),))
EXEMPT = (ip_network("10.0.0.0/8"), ip_network("192.168.7.0/30"), ip_network("fd00:9::/48"))


@pytest.fixture
def inside(host):
    """The host, with this process in it."""
    with Netns(host.path) as namespace, entered(namespace):
        yield host


def own_rules(host):
    """Returns the attachments' rules without their comments."""
    lines = host.run("nft", "list", "chain", "inet", "cni_plugins_masquerade", "masq_checks").splitlines()
    return [line.strip().partition(" comment ")[0] for line in lines if line.strip().startswith(("ip ", "ip6 "))]


@pytest.mark.parametrize(("name", "addresses"), [("masq-nftables", (IPV4,)), ("masq-nftables-dual", (IPV4, IPV6))])
def test_rules_are_the_references(inside, name, addresses):
    """The rule set is the reference's, byte for byte as `nft` prints it, after ADD and after DEL."""
    wanted = replace(ONE, addresses=addresses)
    nftables.add(wanted)
    assert golden.ruleset(inside) == golden.scenario(name)["nft"]
    nftables.check(wanted)
    delete(replace(wanted, addresses=()))
    assert golden.ruleset(inside) == golden.scenario(name)["nft after DEL"]


@pytest.mark.parametrize("name", ["masq-nftables", "masq-nftables-dual"])
def test_the_references_rules_are_ours(inside, tmp_path, name):
    """What the reference made is checked, added to without refilling anything, and deleted."""
    file = tmp_path / "rules"
    file.write_text("\n".join(golden.scenario(name)["nft"]) + "\n")
    inside.run("nft", "-f", str(file))
    wanted = ONE if "dual" in name else replace(ONE, addresses=(IPV4,))
    nftables.check(wanted)
    before = inside.run("nft", "-a", "list", "chain", "inet", "cni_plugins_masquerade", "postrouting")
    nftables.add(OTHER)
    delete(OTHER)
    assert inside.run("nft", "-a", "list", "chain", "inet", "cni_plugins_masquerade", "postrouting") == before
    delete(wanted)
    assert golden.ruleset(inside) == golden.scenario(name)["nft after DEL"]


def test_a_repeated_add_leaves_the_same_rules(inside):
    """ADD again, with the same addresses or others, leaves one rule for each address, and other attachments' alone."""
    nftables.add(ONE)
    once = golden.ruleset(inside)
    nftables.add(ONE)
    assert golden.ruleset(inside) == once
    nftables.add(OTHER)
    nftables.add(replace(ONE, addresses=(ip_interface("10.22.0.9/16"),)))
    assert [rule.split()[2] for rule in own_rules(inside)] == ["10.22.0.3", "10.22.0.9"]


def test_a_second_pod_asks_for_its_own_only(inside, monkeypatch):
    """ADD asks for nothing that is there already, since the kernel would have something to free after it."""
    nftables.add(ONE)
    asked = []
    monkeypatch.setattr(nft, "change", lambda own, *requests: asked.extend(requests))
    nftables.add(OTHER)
    assert [request.description for request in asked] == ["add a rule to chain cni_plugins_masquerade masq_checks"]


def test_exempt_networks_come_before_the_masquerade(inside):
    """For each exempt network of an address's family there is a rule that returns, before the address's own."""
    nftables.add(replace(ONE, exempt=EXEMPT))
    assert own_rules(inside) == [
        "ip saddr 10.22.0.2 ip daddr 10.0.0.0/8 return",
        "ip saddr 10.22.0.2 ip daddr 192.168.7.0/30 return",
        "ip saddr 10.22.0.2 ip daddr != 10.22.0.0/16 masquerade",
        "ip6 saddr fd00:22::2 ip6 daddr fd00:9::/48 return",
        "ip6 saddr fd00:22::2 ip6 daddr != fd00:22::/64 masquerade",
    ]
    nftables.check(replace(ONE, exempt=EXEMPT))
    nftables.check(ONE)


def test_comments_are_cut_and_lose_their_quotes(inside):
    """A comment that would be too long is cut at 128 bytes, quotes are left out, and DEL still finds the rules."""
    wanted = replace(ONE, container_id="c" * 256, ifname='a"b')
    nftables.add(wanted)
    (line, _) = [line for line in nft_rules(inside) if " masquerade " in line]
    comment = line.partition(' comment "')[2].rstrip('"')
    assert len(comment) == 128
    assert ", net: goldnet, if: ab, id: ccc" in comment
    delete(wanted)
    assert own_rules(inside) == []


def test_deleting_what_is_not_there_succeeds(inside):
    """DEL and GC succeed without a table and leave none; DEL succeeds a second time."""
    delete(ONE)
    gc("goldnet", frozenset())
    assert nft_rules(inside) == []
    nftables.add(ONE)
    delete(ONE)
    delete(ONE)


def test_a_reused_address_keeps_its_new_owners_rules(inside):
    """DEL of a pod whose address has been given to another leaves the other's rules."""
    new = replace(OTHER, addresses=ONE.addresses)
    nftables.add(ONE)
    nftables.add(new)
    delete(ONE)
    nftables.check(new)
    with pytest.raises(CniError):
        nftables.check(ONE)


def test_gc_keeps_other_networks(inside):
    """GC deletes a network's rules of what is not valid; the same container on another network stays."""
    elsewhere = replace(ONE, network="elsewhere")
    second = replace(ONE, ifname="eth1")
    for wanted in (ONE, elsewhere, second, OTHER):
        nftables.add(wanted)
    gc("goldnet", frozenset({Attachment("0123abcdef", "eth1"), Attachment("unknown", "eth0")}))
    for wanted in (elsewhere, second):
        nftables.check(wanted)
    assert len(own_rules(inside)) == 4
    gc("goldnet", frozenset())
    nftables.check(elsewhere)
    assert len(own_rules(inside)) == 2


def test_gc_of_thousands(inside, tmp_path):
    """GC of more rules than fit into one send deletes them all."""
    nftables.add(ONE)
    (comment,) = {rule.comment.partition("-")[0] for rule in rules_of(nftables._CHECKS)}
    line = 'add rule inet cni_plugins_masquerade masq_checks ip saddr 10.22.0.9 masquerade comment "{}-{:016x}, x"\n'
    (tmp_path / "rules").write_text("".join(line.format(comment, number) for number in range(3500)))
    inside.run("nft", "-f", str(tmp_path / "rules"))
    gc("goldnet", frozenset({Attachment("0123abcdef", "eth0")}))
    nftables.check(ONE)
    assert len(rules_of(nftables._CHECKS)) == 2


def delete(wanted):
    nft.run_steps([lambda socket: nftables.delete(socket, wanted)])


def gc(network, valid):
    nft.run_steps([lambda socket: nftables.gc(socket, network, valid)])


def rules_of(chain):
    with nft.open_socket() as own:
        return nft.list_rules(own, chain)


SPOILT = {
    "a rule": (
        "delete rule inet cni_plugins_masquerade masq_checks handle {}",
        "10.22.0.2 ip daddr != 10.22.0.0/16 masq",
    ),
    "the way in": ("flush chain inet cni_plugins_masquerade postrouting", "exactly the rules that jump to masq_checks"),
    "one rule more": (
        "insert rule inet cni_plugins_masquerade postrouting accept",
        "exactly the rules that jump to masq_checks",
    ),
    "the chain": (
        "flush table inet cni_plugins_masquerade; delete chain inet cni_plugins_masquerade postrouting",
        "is missing",
    ),
    "the table": ("delete table inet cni_plugins_masquerade", "chain cni_plugins_masquerade postrouting is missing"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_check_tells_what_is_missing(inside, what):
    """CHECK fails with code 999 and says what is missing; ADD puts it right again."""
    command, text = SPOILT[what]
    nftables.add(ONE)
    inside.run("nft", command.format(rules_of(nftables._CHECKS)[0].handle))
    with pytest.raises(CniError) as caught:
        nftables.check(ONE)
    assert caught.value.code == 999
    assert text in caught.value.msg
    nftables.add(ONE)
    nftables.check(ONE)


def test_check_demands_the_hook(inside):
    """A chain of the right name that is not called for NAT is no masquerade, and ADD says what is in the way."""
    inside.run("nft", "add table inet cni_plugins_masquerade; add chain inet cni_plugins_masquerade postrouting")
    with pytest.raises(CniError, match="is not called for NAT"):
        nftables.check(ONE)
    with pytest.raises(CniError, match="add chain cni_plugins_masquerade postrouting: file exists"):
        nftables.add(ONE)
    assert (
        "another program created it with other properties: nft list table inet cni_plugins_masquerade"
        in nftables.get_problem()
    )


def test_check_demands_the_order(inside):
    """An exemption that comes after the masquerade is none."""
    nftables.add(replace(ONE, addresses=(IPV4,), exempt=EXEMPT[:1]))
    first = rules_of(nftables._CHECKS)[0]
    nftables.check(replace(ONE, addresses=(IPV4,), exempt=EXEMPT[:1]))
    with nft.open_socket() as own:
        chain = nftables._CHECKS
        nft.change(
            own,
            nft.delete_rule_request(chain, first.handle),
            nft.rule_request(chain, first.expressions, first.userdata),
        )
    with pytest.raises(CniError, match='masquerade" is missing in chain'):
        nftables.check(replace(ONE, addresses=(IPV4,), exempt=EXEMPT[:1]))


@pytest.fixture
def meanwhile(monkeypatch):
    """A function that has something done once, between the look and the change of the next verb."""

    def once(what):
        change = nft.change

        def changed(*args):
            monkeypatch.setattr(nft, "change", change)
            what()
            change(*args)

        monkeypatch.setattr(nft, "change", changed)

    return once


def test_two_first_pods_at_once(inside, meanwhile):
    """When another first pod makes everything between our look and our change, nothing is there twice."""
    meanwhile(lambda: nftables.add(OTHER))
    nftables.add(ONE)
    nftables.check(ONE)
    nftables.check(OTHER)
    assert len(rules_of(nftables._POSTROUTING)) == 3
    assert len(own_rules(inside)) == 3


@pytest.mark.parametrize("verb", [nftables.add, delete, lambda wanted: gc(wanted.network, frozenset())])
def test_rules_that_vanish_meanwhile(inside, meanwhile, verb):
    """A verb whose rules another verb deletes meanwhile looks again and succeeds."""
    nftables.add(ONE)
    meanwhile(lambda: delete(ONE))
    verb(ONE)
    assert len(own_rules(inside)) == (2 if verb is nftables.add else 0)


def test_a_kernel_that_cannot(inside, monkeypatch):
    """Where NAT in tables of family inet does not exist, ADD says so, STATUS too, and DEL and GC have nothing to do."""
    assert nftables.get_problem() == ""
    assert nft_rules(inside) == []
    hook = nft.Hook("nat", 4, -301)  # the kernel refuses NAT before connection tracking
    monkeypatch.setattr(nftables, "_POSTROUTING", replace(nftables._POSTROUTING, hook=hook))
    assert "Linux 5.2 or later (add chain cni_plugins_masquerade postrouting: " in nftables.get_problem()
    with pytest.raises(CniError) as caught:
        nftables.add(ONE)
    assert "add chain cni_plugins_masquerade postrouting" in caught.value.msg
    assert "Linux 5.2 or later" in caught.value.details
    delete(ONE)
    gc("goldnet", frozenset())
    assert nft_rules(inside) == []


@pytest.mark.parametrize("number", [93, 97])
def test_a_kernel_without_netfilter(inside, monkeypatch, number):
    """Where there is no netfilter socket, ADD and STATUS say so, and DEL and GC have nothing to do."""

    def refused():
        raise KernelError("open a netlink socket", number)

    monkeypatch.setattr(nft, "NftSocket", refused)
    with pytest.raises(CniError, match="open a netfilter socket"):
        nftables.add(ONE)
    assert "CONFIG_NETFILTER_NETLINK" in nftables.get_problem()
    delete(ONE)
    gc("goldnet", frozenset())


def test_a_kernel_without_nftables(inside, monkeypatch):
    """Where nfnetlink knows no nftables it answers EINVAL; DEL and GC have nothing to do then."""
    monkeypatch.setattr(nft, "_GETRULE", 99 << 8)
    monkeypatch.setattr(nft, "_GETCHAIN", 99 << 8)
    delete(ONE)
    gc("goldnet", frozenset())
    with pytest.raises(CniError, match="is missing"):
        nftables.check(ONE)


def test_del_tells_of_other_failures(inside, monkeypatch):
    """A failure that does not mean absence is told by DEL."""

    def refuse(*args):
        raise KernelError("change nftables", 1)

    nftables.add(ONE)
    monkeypatch.setattr(nft, "change", refuse)
    with pytest.raises(KernelError):
        delete(ONE)
