"""macspoofchk: frames with a foreign source MAC are dropped (plugins.bridge.mac_spoof), as rules and as real frames."""

import json
import socket
from dataclasses import replace

import pytest
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from cni.conf import Attachment
from cni.errors import CniError
from kernel.netfilter import nft
from kernel.netns import Netns, entered
from plugins.bridge import mac_spoof
from tests.support import golden
from tests.support.attaching import host_end, reaches
from tests.support.invocation import finish
from tests.support.netstate import nft_rules

MAC, OTHER_MAC = bytes.fromhex("020000000001"), bytes.fromhex("020000000099")
PORT = "veth01234567"
ONE = ("goldnet", "0123abcdef", "eth0", PORT, MAC)
TYPE = 0x88B5  # an EtherType for local experiments (IEEE 802)


def unprotect(container_id, ifname, network="goldnet"):
    nft.run_steps([lambda socket: mac_spoof.remove_rules(socket, network, container_id, ifname)])


def gc(network, valid):
    nft.run_steps([lambda socket: mac_spoof.gc(socket, network, valid)])


@pytest.fixture
def inside(host):
    """The host, with this process in it."""
    with Netns(host.path) as namespace, entered(namespace):
        yield host


@pytest.fixture
def protected(network):
    """A network whose pods cannot send with another MAC than their own."""
    return network.having(macspoofchk=True)


@pytest.fixture(scope="module")
def expected():
    """The golden state."""
    return golden.scenario("macspoofchk")


def load(host, tmp_path, text):
    """Has `nft` read rules."""
    (tmp_path / "rules").write_text(text + "\n")
    host.run("nft", "-f", str(tmp_path / "rules"))


def test_rules_are_the_references(inside, expected):
    """The rule set is the reference's as `nft` prints it, after ADD, after a repeated ADD, and after DEL."""
    for _ in range(2):
        mac_spoof.add_rules(*ONE)
        assert golden.ruleset(inside) == expected["nft"]
        assert f'iifname "{PORT}"' in "".join(nft_rules(inside))
        assert f"ether saddr {MAC.hex(':')} return" in "".join(nft_rules(inside))
    mac_spoof.check(*ONE)
    for _ in range(2):
        unprotect("0123abcdef", "eth0")
        assert golden.ruleset(inside) == expected["nft after DEL"]


def test_the_references_rules_are_ours(inside, expected, tmp_path):
    """What the reference made is checked, replaced by a repeated ADD, and deleted."""
    text = "\n".join(expected["nft"]).replace("PORT", PORT).replace("MAC", MAC.hex(":"))
    load(inside, tmp_path, text)
    mac_spoof.check(*ONE)
    mac_spoof.add_rules(*ONE)
    assert golden.ruleset(inside) == expected["nft"]
    load(inside, tmp_path, "flush ruleset\n" + text)
    unprotect("0123abcdef", "eth0")
    assert golden.ruleset(inside) == expected["nft after DEL"]


def test_an_attachment_with_another_port_and_address_replaces_the_old(inside):
    """ADD again with another interface and MAC leaves nothing of the old ones; other attachments stay."""
    mac_spoof.add_rules("goldnet", "other", "eth0", "veth2", MAC)
    before = nft_rules(inside)
    mac_spoof.add_rules(*ONE)
    mac_spoof.add_rules("goldnet", "0123abcdef", "eth0", "vethnew", OTHER_MAC)
    text = "".join(nft_rules(inside))
    assert (PORT in text, "vethnew" in text, OTHER_MAC.hex(":") in text) == (False, True, True)
    unprotect("0123abcdef", "eth0")
    assert nft_rules(inside) == before


def test_deleting_what_is_not_there_succeeds(inside):
    """DEL and GC succeed without a table, and with only a part of the rules."""
    unprotect("0123abcdef", "eth0")
    gc("goldnet", frozenset())
    assert nft_rules(inside) == []
    parts = (
        "flush chain bridge nat PREROUTING",
        "flush table bridge nat; delete chain bridge nat cni-br-iface-0123abcdef-eth0",
    )
    for part in parts:
        mac_spoof.add_rules(*ONE)
        inside.run("nft", part)
        unprotect("0123abcdef", "eth0")
        assert "0123abcdef" not in "".join(nft_rules(inside))


def test_names_that_begin_alike(inside):
    """DEL of eth1 leaves eth10 alone, and DEL of one container another whose ID begins with its ID."""
    for container_id, ifname in (("a", "eth1"), ("a", "eth10"), ("aa", "eth1")):
        mac_spoof.add_rules("goldnet", container_id, ifname, PORT, MAC)
    unprotect("a", "eth1")
    mac_spoof.check("goldnet", "a", "eth10", PORT, MAC)
    mac_spoof.check("goldnet", "aa", "eth1", PORT, MAC)


def test_a_second_pod_asks_for_its_own_only(inside, monkeypatch):
    """ADD asks for nothing that is there already, since the kernel would have something to free after it."""
    mac_spoof.add_rules(*ONE)
    asked = []
    monkeypatch.setattr(nft, "change", lambda own, *requests: asked.extend(requests))
    mac_spoof.add_rules("goldnet", "other", "eth0", "veth2", MAC)
    assert [request.description.replace(" cni-br-iface", "") for request in asked] == [
        "add chain nat-other-eth0",
        "add chain nat-other-eth0-mac",
        "add a rule to chain nat PREROUTING",
        "add a rule to chain nat-other-eth0",
        "add a rule to chain nat-other-eth0-mac",
        "add a rule to chain nat-other-eth0-mac",
    ]


def test_the_tool_shows_what_it_always_shows(inside, tmp_path):
    """The network's name in the userdata does not hide the comment, in text or JSON, and a listing can be loaded."""
    mac_spoof.add_rules(*ONE)
    text = "\n".join(nft_rules(inside))
    assert text.count('comment "macspoofchk-0123abcdef-eth0"') == 4
    found = json.loads(inside.run("nft", "-j", "list", "ruleset"))["nftables"]
    assert [item["rule"]["comment"] for item in found if "rule" in item] == ["macspoofchk-0123abcdef-eth0"] * 4
    load(inside, tmp_path, "flush ruleset\n" + text)
    assert "\n".join(nft_rules(inside)) == text
    mac_spoof.check(*ONE)


@pytest.mark.parametrize("length", [64, 94, 95, 256])
def test_long_names(inside, length, tmp_path):
    """Names stay such that `nft` can load its own listing; as long as they fit they are the reference's."""
    long, like_it = "c" * length, "c" * (length - 1) + "d"
    for container_id in (long, like_it):
        mac_spoof.add_rules("goldnet", container_id, "fifteen-letters", PORT, MAC)
    text = "\n".join(nft_rules(inside))
    assert (f"chain cni-br-iface-{long}-fifteen-letters-mac " in text) == (length <= 94)
    load(inside, tmp_path, "flush ruleset\n" + text)
    assert "\n".join(nft_rules(inside)) == text
    unprotect(long, "fifteen-letters")
    mac_spoof.check("goldnet", like_it, "fifteen-letters", PORT, MAC)
    with pytest.raises(CniError):
        mac_spoof.check("goldnet", long, "fifteen-letters", PORT, MAC)


def test_gc_removes_only_its_networks(inside, tmp_path, capsys):
    """GC removes what is provably of this network and not valid; what names no network is counted and stays."""
    attachments = {"valid": "goldnet", "lost": "goldnet", "elsewhere": "other"}
    for container_id, name in attachments.items():
        mac_spoof.add_rules(name, container_id, "eth0", PORT, MAC)
    mac_spoof.add_rules("goldnet", "c" * 256, "eth0", PORT, MAC)
    mac_spoof.add_rules("goldnet", "d" * 256, "eth0", PORT, MAC)
    chain = "cni-br-iface-reference-eth0"
    comment = 'comment "macspoofchk-reference-eth0"'
    load(inside, tmp_path, f"add chain bridge nat {chain}; add rule bridge nat PREROUTING jump {chain} {comment}")
    inside.run("nft", 'add rule bridge nat PREROUTING iifname "foreign" drop comment "not macspoofchk-x"')
    valid = frozenset({Attachment("valid", "eth0"), Attachment("c" * 256, "eth0"), Attachment("lost", "eth1")})
    gc("goldnet", valid)
    assert "GC leaves 1 rule(s) in chain nat PREROUTING" in capsys.readouterr().err
    text = "".join(nft_rules(inside))
    for name, container_id in (("goldnet", "valid"), ("other", "elsewhere"), ("goldnet", "c" * 256)):
        mac_spoof.check(name, container_id, "eth0", PORT, MAC)
    assert ("lost" in text, "reference" in text, "foreign" in text) == (False, True, True)
    assert text.count("chain cni-br-iface-") == 7
    gc("goldnet", valid | {Attachment("reference", "eth0")})
    assert capsys.readouterr().err == ""


def test_the_same_container_of_another_network(inside):
    """Where another network has the reference's names, an attachment gets its own; each lives and goes by itself."""
    networks = ("goldnet", "other", "third")
    for network in networks * 2:  # a second ADD changes nothing
        mac_spoof.add_rules(network, *ONE[1:])
    for network in networks:
        mac_spoof.check(network, *ONE[1:])
    assert sum("iifname" in line for line in nft_rules(inside)) == 3
    gc("other", frozenset({Attachment("0123abcdef", "eth0")}))
    unprotect("0123abcdef", "eth0")
    for network in networks[1:]:
        mac_spoof.check(network, *ONE[1:])
    gc("other", frozenset())
    mac_spoof.check("third", *ONE[1:])
    with pytest.raises(CniError):
        mac_spoof.check("other", *ONE[1:])
    unprotect("0123abcdef", "eth0", "third")
    assert "0123abcdef" not in "".join(nft_rules(inside))


SPOILT = {
    "jump": "flush chain bridge nat PREROUTING",
    "chain": "flush chain bridge nat cni-br-iface-0123abcdef-eth0",
    "MAC": "flush chain bridge nat cni-br-iface-0123abcdef-eth0-mac",
    "table": "delete table bridge nat",
    "hook": "delete table bridge nat; add table bridge nat; add chain bridge nat PREROUTING",
}


@pytest.mark.parametrize("what", SPOILT)
def test_check_tells_what_is_missing(inside, what):
    """CHECK fails with code 999 when any part is gone."""
    mac_spoof.add_rules(*ONE)
    inside.run("nft", SPOILT[what])
    with pytest.raises(CniError, match="is missing") as caught:
        mac_spoof.check(*ONE)
    assert caught.value.code == 999
    assert PORT in caught.value.details


def test_check_compares_port_and_address(inside):
    """CHECK fails when the rules are for another interface or another MAC."""
    mac_spoof.add_rules(*ONE)
    for port, mac in (("vethother", MAC), (PORT, OTHER_MAC)):
        with pytest.raises(CniError, match="a rule is missing in chain nat "):
            mac_spoof.check("goldnet", "0123abcdef", "eth0", port, mac)


def test_what_changes_meanwhile(inside, monkeypatch):
    """When the table appears, or rules go, between look and change, ADD and DEL still work."""
    change = nft.change

    def after(what):
        def changed(*args):
            monkeypatch.setattr(nft, "change", change)
            what()
            change(*args)

        monkeypatch.setattr(nft, "change", changed)

    after(lambda: mac_spoof.add_rules("goldnet", "other", "eth0", "veth2", MAC))
    mac_spoof.add_rules(*ONE)
    mac_spoof.check(*ONE)
    mac_spoof.check("goldnet", "other", "eth0", "veth2", MAC)
    for verb in (lambda: mac_spoof.add_rules(*ONE), lambda: unprotect("0123abcdef", "eth0")):
        after(lambda: unprotect("0123abcdef", "eth0"))
        verb()
    assert "0123abcdef" not in "".join(nft_rules(inside))


def test_a_kernel_that_cannot(inside, monkeypatch):
    """STATUS is told what the kernel lacks, asking leaves nothing, and without netfilter there is nothing to delete."""
    assert mac_spoof.get_problem() == ""
    assert nft_rules(inside) == []
    unknown = replace(mac_spoof._PREROUTING, hook=nft.Hook("no-such-type", 0, -300))
    monkeypatch.setattr(mac_spoof, "_PREROUTING", unknown)
    assert "no such file or directory" in mac_spoof.get_problem()

    def refused():
        raise nft.UnavailableError("open a netlink socket", 93)

    monkeypatch.setattr(nft, "NftSocket", refused)
    assert "protocol not supported" in mac_spoof.get_problem()
    unprotect("0123abcdef", "eth0")
    gc("goldnet", frozenset())
    with pytest.raises(CniError, match="open a netfilter socket"):
        mac_spoof.add_rules(*ONE)


@pytest.fixture
def wire():
    """A function that opens a raw socket on eth0 of a pod."""
    opened = []

    def on(pod):
        with Netns(pod.path) as namespace, entered(namespace):
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(TYPE))
            raw.bind(("eth0", TYPE))
        raw.settimeout(5)
        opened.append(raw)
        return raw

    yield on
    for raw in opened:
        raw.close()


def frame(source, text):
    """Returns a broadcast frame."""
    return bytes(Ether(dst="ff:ff:ff:ff:ff:ff", src=source, type=TYPE) / Raw(text.ljust(46, b"\0")))


def heard(receiver, until):
    """Returns source and text of the frames that arrive, up to and with the text `until`."""
    found = []
    while until not in [text for _, text in found]:
        arrived = Ether(receiver.recv(2000))
        found.append((arrived.src, arrived[Raw].load.rstrip(b"\0")))
    return found


def test_spoofed_frames_are_dropped(protected, new_sandbox, wire):
    """A pod's frames pass with its own MAC and not with another, while one without the check may send anything."""
    pod, free, listener = new_sandbox(), new_sandbox(), new_sandbox()
    result = protected.add(pod)
    unprotected = protected.having(macspoofchk=None)
    foreign = unprotected.add(free)
    unprotected.add(listener)
    own, other = (item["interfaces"][2]["mac"] for item in (result, foreign))
    receiver = wire(listener)
    sender = wire(pod)
    for source in (OTHER_MAC.hex(":"), other):
        sender.send(frame(source, b"spoofed"))
    sender.send(frame(own, b"honest"))
    assert heard(receiver, b"honest") == [(own, b"honest")]
    wire(free).send(frame(own, b"anything"))
    assert heard(receiver, b"anything") == [(own, b"anything")]
    assert reaches(pod, "10.22.0.1")
    protected.check(pod, result)
    protected.delete(pod)
    assert "macspoofchk" not in "".join(nft_rules(protected.host))


def test_first_pods_at_once(protected, host, new_sandbox):
    """Eight first pods attached at once are all protected, and detached at once leave nothing."""
    pods = [new_sandbox() for _ in range(8)]
    for outcome in [finish(process) for process in [protected.start("ADD", pod) for pod in pods]]:
        outcome.result()
    text = "".join(nft_rules(host))
    assert (text.count("iifname"), text.count("drop comment")) == (8, 8)
    for outcome in [finish(process) for process in [protected.start("DEL", pod) for pod in pods]]:
        outcome.assert_silent()
    assert "macspoofchk" not in "".join(nft_rules(host))


def test_rules_go_without_the_sandbox(protected, host, new_sandbox):
    """DEL removes the rules when the sandbox is gone, and when CNI_NETNS is empty."""
    gone, unnamed = new_sandbox(), new_sandbox()
    protected.add(gone)
    protected.add(unnamed)
    gone.delete()
    protected.delete(gone)
    assert "".join(nft_rules(host)).count("iifname") == 1
    protected.run("DEL", unnamed, netns="").assert_silent()
    assert "macspoofchk" not in "".join(nft_rules(host))


def test_gc_of_the_plugin(protected, host, new_sandbox):
    """GC removes the rules of pods that are not listed, on this network only."""
    kept, lost, elsewhere = new_sandbox(), new_sandbox(), new_sandbox()
    net = protected.having(cniVersion="1.1.0")
    net.add(kept)
    net.add(lost)
    net.having(name="elsewhere").add(elsewhere)
    valid = [{"containerID": kept.name, "ifname": "eth0"}]
    net.having(**{"cni.dev/valid-attachments": valid}).run("GC", container_id=None, ifname=None).assert_silent()
    text = "".join(nft_rules(host))
    assert [f"macspoofchk-{pod.name}-eth0" in text for pod in (kept, lost, elsewhere)] == [True, False, True]


def test_rules_go_when_add_fails(protected, host, sandbox):
    """An ADD that fails after the rules were made takes them back."""
    host.ip("link", "add", "cni0", "type", "bridge")
    host.ip("addr", "add", "10.99.0.1/16", "dev", "cni0")
    assert "already has an IP address" in protected.run("ADD", sandbox).error()["msg"]
    assert "chain PREROUTING" in "".join(nft_rules(host))
    assert "macspoofchk" not in "".join(nft_rules(host))


def test_check_of_the_plugin(protected, host, sandbox):
    """CHECK fails when the rules are gone."""
    result = protected.add(sandbox)
    host.run("nft", "flush", "chain", "bridge", "nat", "PREROUTING")
    body = protected.run("CHECK", sandbox, prev_result=result).error()
    assert "is missing" in body["msg"]
    assert host_end(result) in body["details"]


@pytest.mark.parametrize(("maker", "taker"), [("ours", "reference"), ("reference", "ours")])
def test_a_protected_pod_is_taken_over(protected, host, sandbox, bin_dir, reference, maker, taker):
    """What one has protected the other takes away, and the rules look the same."""
    directories = {"ours": bin_dir, "reference": reference}
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # the reference runs `nft`
    made = replace(protected, bin_dir=directories[maker])
    taken = replace(protected, bin_dir=directories[taker])
    result = made.add(sandbox, env=env)
    assert "".join(nft_rules(host)).count("macspoofchk-") == 4
    if taker == "ours":
        taken.check(sandbox, result)
    taken.delete(sandbox, result, env=env)
    assert "macspoofchk" not in "".join(nft_rules(host))
    assert "cni-br-iface" not in "".join(nft_rules(host))
