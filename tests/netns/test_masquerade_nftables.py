"""Masquerading with nftables (attachment.masquerade.nftables): its rules, and concurrent changes of them."""

from dataclasses import replace
from ipaddress import ip_interface, ip_network

import pytest

from attachment.masquerade import nftables
from attachment.masquerade.spec import Masquerade
from cni.conf import Attachment
from cni.errors import CniError
from kernel.errors import KernelError
from kernel.netfilter import nft
from tests.support import golden
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_nat")

IPV4, IPV6 = ip_interface("10.22.0.2/16"), ip_interface("fd00:22::2/64")
ONE = Masquerade("goldnet", "0123abcdef", "eth0", (IPV4, IPV6))
OTHER = replace(ONE, container_id="other", addresses=(ip_interface("10.22.0.3/16"),))
EXEMPT = (ip_network("10.0.0.0/8"), ip_network("192.168.7.0/30"), ip_network("fd00:9::/48"))


@pytest.fixture
def entered_host(host):
    """The host; this process is in its namespace."""
    with host.entered():
        yield host


def attachment_rules(host):
    """Returns the attachments' rules without their comments."""
    lines = host.run("nft", "list", "chain", "inet", "cni_plugins_masquerade", "masq_checks").splitlines()
    return [line.strip().partition(" comment ")[0] for line in lines if line.strip().startswith(("ip ", "ip6 "))]


SPECS = {"masq-nftables": replace(ONE, addresses=(IPV4,)), "masq-nftables-dual": ONE}


@pytest.mark.parametrize(("name", "spec"), SPECS.items(), ids=SPECS)
def test_rules_are_the_references(entered_host, name, spec):
    """The ruleset after ADD and after DEL equals the reference plugin's, byte for byte as `nft` prints it."""
    delete(spec)
    gc("goldnet", frozenset())
    assert nft_rules(entered_host) == []
    nftables.add(spec)
    assert golden.ruleset(entered_host) == golden.scenario(name)["nft"]
    nftables.check(spec)
    for _ in range(2):
        delete(replace(spec, addresses=()))
    assert golden.ruleset(entered_host) == golden.scenario(name)["nft after DEL"]


@pytest.mark.parametrize(("name", "spec"), SPECS.items(), ids=SPECS)
def test_rules_of_the_reference_are_reused(entered_host, tmp_path, name, spec):
    """CHECK accepts the reference plugin's rules, ADD adds to them without recreating them, and DEL deletes them."""
    file = tmp_path / "rules"
    file.write_text("\n".join(golden.scenario(name)["nft"]) + "\n")
    entered_host.run("nft", "-f", str(file))
    nftables.check(spec)
    before = rules_of(nftables._POSTROUTING)
    nftables.add(OTHER)
    delete(OTHER)
    assert rules_of(nftables._POSTROUTING) == before
    delete(spec)
    assert golden.ruleset(entered_host) == golden.scenario(name)["nft after DEL"]


def test_a_repeated_add_leaves_the_same_rules(entered_host):
    """A repeated ADD, with the same or other addresses, leaves one rule for each; other attachments' rules stay."""
    nftables.add(ONE)
    once = golden.ruleset(entered_host)
    nftables.add(ONE)
    assert golden.ruleset(entered_host) == once
    nftables.add(OTHER)
    nftables.add(replace(ONE, addresses=(ip_interface("10.22.0.9/16"),)))
    assert [rule.split()[2] for rule in attachment_rules(entered_host)] == ["10.22.0.3", "10.22.0.9"]


def test_add_creates_only_missing_objects(entered_host, monkeypatch):
    """ADD of a second pod requests only its rules: other requests would leave the kernel memory to free."""
    nftables.add(ONE)
    sent = []
    monkeypatch.setattr(nft, "change", lambda socket, *requests: sent.extend(requests))
    nftables.add(OTHER)
    assert [request.description for request in sent] == ["add a rule to chain cni_plugins_masquerade masq_checks"]


def test_exempt_networks_precede_the_masquerading(entered_host):
    """Each exempt network of an address's family has a rule that returns, before the rule that masquerades."""
    nftables.add(replace(ONE, exempt=EXEMPT))
    assert attachment_rules(entered_host) == [
        "ip saddr 10.22.0.2 ip daddr 10.0.0.0/8 return",
        "ip saddr 10.22.0.2 ip daddr 192.168.7.0/30 return",
        "ip saddr 10.22.0.2 ip daddr != 10.22.0.0/16 masquerade",
        "ip6 saddr fd00:22::2 ip6 daddr fd00:9::/48 return",
        "ip6 saddr fd00:22::2 ip6 daddr != fd00:22::/64 masquerade",
    ]
    nftables.check(replace(ONE, exempt=EXEMPT))
    nftables.check(ONE)


def test_comments_are_truncated_and_have_no_quotes(entered_host):
    """Comments are truncated to 128 bytes and have no quotes; DEL still recognises the rules."""
    spec = replace(ONE, container_id="c" * 256, ifname='a"b')
    nftables.add(spec)
    (line, _) = [line for line in nft_rules(entered_host) if " masquerade " in line]
    comment = line.partition(' comment "')[2].rstrip('"')
    assert len(comment) == 128
    assert ", net: goldnet, if: ab, id: ccc" in comment
    delete(spec)
    assert attachment_rules(entered_host) == []


def test_a_reused_address_keeps_its_new_owners_rules(entered_host):
    """DEL of a pod keeps the rules of the pod that has its address now."""
    new = replace(OTHER, addresses=ONE.addresses)
    nftables.add(ONE)
    nftables.add(new)
    delete(ONE)
    nftables.check(new)
    with pytest.raises(CniError):
        nftables.check(ONE)


def test_gc_keeps_other_networks(entered_host):
    """GC deletes its network's rules of attachments that are not valid, but not those of other networks."""
    other_network = replace(ONE, network="elsewhere")
    second = replace(ONE, ifname="eth1")
    for spec in (ONE, other_network, second, OTHER):
        nftables.add(spec)
    gc("goldnet", frozenset({Attachment("0123abcdef", "eth1"), Attachment("unknown", "eth0")}))
    for spec in (other_network, second):
        nftables.check(spec)
    assert len(attachment_rules(entered_host)) == 4
    gc("goldnet", frozenset())
    nftables.check(other_network)
    assert len(attachment_rules(entered_host)) == 2


def test_gc_of_thousands(entered_host, tmp_path):
    """GC of more rules than fit into one send deletes them all."""
    nftables.add(ONE)
    (comment,) = {rule.comment.partition("-")[0] for rule in rules_of(nftables._CHECKS)}
    line = 'add rule inet cni_plugins_masquerade masq_checks ip saddr 10.22.0.9 masquerade comment "{}-{:016x}, x"\n'
    (tmp_path / "rules").write_text("".join(line.format(comment, number) for number in range(3500)))
    entered_host.run("nft", "-f", str(tmp_path / "rules"))
    gc("goldnet", frozenset({Attachment("0123abcdef", "eth0")}))
    nftables.check(ONE)
    assert len(rules_of(nftables._CHECKS)) == 2


def delete(spec):
    nft.run_steps([lambda socket: nftables.delete(socket, spec)])


def gc(network, valid):
    nft.run_steps([lambda socket: nftables.gc(socket, network, valid)])


def rules_of(chain):
    with nft.open_socket() as socket:
        return nft.list_rules(socket, chain)


TABLE = "inet cni_plugins_masquerade"
DAMAGE = {
    "delete rule {} masq_checks handle {}": "10.22.0.2 ip daddr != 10.22.0.0/16 masq",
    "flush chain {} postrouting": "exactly the rules that jump to masq_checks",
    "insert rule {} postrouting accept": "exactly the rules that jump to masq_checks",
    "flush table {0}; delete chain {0} postrouting": "is missing",
    "delete table {}": "chain cni_plugins_masquerade postrouting is missing",
}


@pytest.mark.parametrize(("command", "text"), DAMAGE.items(), ids=DAMAGE)
def test_check_names_the_missing_object(entered_host, command, text):
    """CHECK fails with code 999 and names the missing object; ADD repairs it."""
    nftables.add(ONE)
    entered_host.run("nft", command.format(TABLE, rules_of(nftables._CHECKS)[0].handle))
    with pytest.raises(CniError) as caught:
        nftables.check(ONE)
    assert caught.value.code == 999
    assert text in caught.value.msg
    nftables.add(ONE)
    nftables.check(ONE)


def test_check_requires_the_hook(entered_host):
    """CHECK and ADD fail for a chain with the right name but without the hook, and STATUS names the problem."""
    entered_host.run("nft", "add table inet cni_plugins_masquerade; add chain inet cni_plugins_masquerade postrouting")
    with pytest.raises(CniError, match="is not called for NAT"):
        nftables.check(ONE)
    with pytest.raises(CniError, match="add chain cni_plugins_masquerade postrouting: file exists"):
        nftables.add(ONE)
    problem = f"another program created it with other properties: nft list table {TABLE}"
    assert problem in nftables.get_problem()


def test_check_requires_the_order(entered_host):
    """CHECK fails for an exemption after the rule that masquerades."""
    nftables.add(replace(ONE, addresses=(IPV4,), exempt=EXEMPT[:1]))
    first = rules_of(nftables._CHECKS)[0]
    nftables.check(replace(ONE, addresses=(IPV4,), exempt=EXEMPT[:1]))
    chain = nftables._CHECKS
    with nft.open_socket() as socket:
        last = nft.rule_request(chain, first.expressions, first.userdata)
        nft.change(socket, nft.delete_rule_request(chain, first.handle), last)
    with pytest.raises(CniError, match='masquerade" is missing in chain'):
        nftables.check(replace(ONE, addresses=(IPV4,), exempt=EXEMPT[:1]))


@pytest.fixture
def before_change(monkeypatch):
    """A function that has an action run once, between the read and the change of the next verb."""

    def once(action):
        change = nft.change

        def act_and_change(*args):
            monkeypatch.setattr(nft, "change", change)
            action()
            change(*args)

        monkeypatch.setattr(nft, "change", act_and_change)

    return once


def test_parallel_first_pods(entered_host, before_change):
    """If another pod creates the shared rules between read and change, they are not duplicated."""
    before_change(lambda: nftables.add(OTHER))
    nftables.add(ONE)
    nftables.check(ONE)
    nftables.check(OTHER)
    assert len(rules_of(nftables._POSTROUTING)) == 3
    assert len(attachment_rules(entered_host)) == 3


@pytest.mark.parametrize("verb", [nftables.add, delete, lambda spec: gc(spec.network, frozenset())])
def test_rules_that_another_verb_deletes(entered_host, before_change, verb):
    """A verb whose rules another verb deletes between read and change reads again and succeeds."""
    nftables.add(ONE)
    before_change(lambda: delete(ONE))
    verb(ONE)
    assert len(attachment_rules(entered_host)) == (2 if verb is nftables.add else 0)


def test_a_kernel_without_nat_in_family_inet(entered_host, monkeypatch):
    """If the kernel has no NAT in tables of family inet, ADD and STATUS report it, and DEL and GC succeed."""
    assert nftables.get_problem() == ""
    assert nft_rules(entered_host) == []
    hook = nft.Hook("nat", 4, -301)  # the kernel refuses NAT before connection tracking
    monkeypatch.setattr(nftables, "_POSTROUTING", replace(nftables._POSTROUTING, hook=hook))
    assert "Linux 5.2 or later (add chain cni_plugins_masquerade postrouting: " in nftables.get_problem()
    with pytest.raises(CniError) as caught:
        nftables.add(ONE)
    assert "add chain cni_plugins_masquerade postrouting" in caught.value.msg
    assert "Linux 5.2 or later" in caught.value.details
    delete(ONE)
    gc("goldnet", frozenset())
    assert nft_rules(entered_host) == []


@pytest.mark.parametrize("number", [93, 97])
def test_a_kernel_without_netfilter(entered_host, monkeypatch, number):
    """If the kernel has no netfilter sockets, ADD and STATUS report it, and DEL and GC succeed."""

    def refused():
        raise KernelError("open a netlink socket", number)

    monkeypatch.setattr(nft, "NftSocket", refused)
    with pytest.raises(CniError, match="open a netfilter socket"):
        nftables.add(ONE)
    assert "CONFIG_NETFILTER_NETLINK" in nftables.get_problem()
    delete(ONE)
    gc("goldnet", frozenset())


def test_a_kernel_without_nftables(entered_host, monkeypatch):
    """If nfnetlink does not support nftables (EINVAL), DEL and GC succeed."""
    monkeypatch.setattr(nft, "_GETRULE", 99 << 8)
    monkeypatch.setattr(nft, "_GETCHAIN", 99 << 8)
    delete(ONE)
    gc("goldnet", frozenset())
    with pytest.raises(CniError, match="is missing"):
        nftables.check(ONE)


def test_del_reports_other_failures(entered_host, monkeypatch):
    """DEL reports a failure that does not mean absence."""

    def refuse(*args):
        raise KernelError("change nftables", 1)

    nftables.add(ONE)
    monkeypatch.setattr(nft, "change", refuse)
    with pytest.raises(KernelError):
        delete(ONE)
