"""macspoofchk (plugins.bridge.mac_spoof): its rules, and that frames with a spoofed source MAC are dropped."""

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
from tests.support.attaching import reaches
from tests.support.netstate import nft_rules

MAC, OTHER_MAC = bytes.fromhex("020000000001"), bytes.fromhex("020000000099")
PORT = "veth01234567"
ONE = ("goldnet", "0123abcdef", "eth0", PORT, MAC)
TYPE = 0x88B5  # an EtherType for local experiments (IEEE 802)


def remove_rules(container_id, ifname, network="goldnet"):
    nft.run_steps([lambda socket: mac_spoof.remove_rules(socket, network, container_id, ifname)])


def gc(network, valid):
    nft.run_steps([lambda socket: mac_spoof.gc(socket, network, valid)])


@pytest.fixture
def on_host(host):
    """The host, entered by this process."""
    with Netns(host.path) as namespace, entered(namespace):
        yield host


@pytest.fixture
def protected(network):
    """A network whose pods can only send with their own MAC address."""
    return network.having(macspoofchk=True)


@pytest.fixture(scope="module")
def expected():
    """The golden state."""
    return golden.scenario("macspoofchk")


def load(host, tmp_path, text):
    """Loads rules with `nft`."""
    (tmp_path / "rules").write_text(text + "\n")
    host.run("nft", "-f", str(tmp_path / "rules"))


def test_rules_equal_those_of_the_reference(on_host, expected):
    """After ADD, a second ADD and DEL, `nft` prints the same rules as with the reference."""
    for _ in range(2):
        mac_spoof.add_rules(*ONE)
        assert golden.ruleset(on_host) == expected["nft"]
        assert f'iifname "{PORT}"' in "".join(nft_rules(on_host))
        assert f"ether saddr {MAC.hex(':')} return" in "".join(nft_rules(on_host))
    mac_spoof.check(*ONE)
    for _ in range(2):
        remove_rules("0123abcdef", "eth0")
        assert golden.ruleset(on_host) == expected["nft after DEL"]


def test_rules_of_the_reference_are_accepted(on_host, expected, tmp_path):
    """Rules of the reference pass CHECK, are replaced by a second ADD, and are deleted."""
    text = "\n".join(expected["nft"]).replace("PORT", PORT).replace("MAC", MAC.hex(":"))
    load(on_host, tmp_path, text)
    mac_spoof.check(*ONE)
    mac_spoof.add_rules(*ONE)
    assert golden.ruleset(on_host) == expected["nft"]
    load(on_host, tmp_path, "flush ruleset\n" + text)
    remove_rules("0123abcdef", "eth0")
    assert golden.ruleset(on_host) == expected["nft after DEL"]


def test_second_add_replaces_the_rules(on_host):
    """A second ADD with another interface and MAC replaces the attachment's rules and no others."""
    mac_spoof.add_rules("goldnet", "other", "eth0", "veth2", MAC)
    before = nft_rules(on_host)
    mac_spoof.add_rules(*ONE)
    mac_spoof.add_rules("goldnet", "0123abcdef", "eth0", "vethnew", OTHER_MAC)
    text = "".join(nft_rules(on_host))
    assert (PORT in text, "vethnew" in text, OTHER_MAC.hex(":") in text) == (False, True, True)
    remove_rules("0123abcdef", "eth0")
    assert nft_rules(on_host) == before


def test_del_and_gc_of_missing_rules_succeed(on_host):
    """DEL and GC succeed without a table, and with only a part of the rules."""
    remove_rules("0123abcdef", "eth0")
    gc("goldnet", frozenset())
    assert nft_rules(on_host) == []
    parts = (
        "flush chain bridge nat PREROUTING",
        "flush table bridge nat; delete chain bridge nat cni-br-iface-0123abcdef-eth0",
    )
    for part in parts:
        mac_spoof.add_rules(*ONE)
        on_host.run("nft", part)
        remove_rules("0123abcdef", "eth0")
        assert "0123abcdef" not in "".join(nft_rules(on_host))


def test_names_with_a_common_prefix(on_host):
    """DEL of eth1 keeps the rules of eth10, and those of a container whose ID has the same prefix."""
    for container_id, ifname in (("a", "eth1"), ("a", "eth10"), ("aa", "eth1")):
        mac_spoof.add_rules("goldnet", container_id, ifname, PORT, MAC)
    remove_rules("a", "eth1")
    mac_spoof.check("goldnet", "a", "eth10", PORT, MAC)
    mac_spoof.check("goldnet", "aa", "eth1", PORT, MAC)


def test_second_pod_sends_only_its_requests(on_host, monkeypatch):
    """ADD does not request existing objects: the kernel would have to free memory afterwards."""
    mac_spoof.add_rules(*ONE)
    sent = []
    monkeypatch.setattr(nft, "change", lambda _socket, *requests: sent.extend(requests))
    mac_spoof.add_rules("goldnet", "other", "eth0", "veth2", MAC)
    assert [request.description.replace(" cni-br-iface", "") for request in sent] == [
        "add chain nat-other-eth0",
        "add chain nat-other-eth0-mac",
        "add a rule to chain nat PREROUTING",
        "add a rule to chain nat-other-eth0",
        "add a rule to chain nat-other-eth0-mac",
        "add a rule to chain nat-other-eth0-mac",
    ]


@pytest.mark.parametrize("length", [64, 94, 95, 256])
def test_long_names(on_host, length, tmp_path):
    """`nft` can load its listing of any names; they equal the reference's if they are short enough."""
    long, similar = "c" * length, "c" * (length - 1) + "d"
    for container_id in (long, similar):
        mac_spoof.add_rules("goldnet", container_id, "fifteen-letters", PORT, MAC)
    text = "\n".join(nft_rules(on_host))
    assert (f"chain cni-br-iface-{long}-fifteen-letters-mac " in text) == (length <= 94)
    load(on_host, tmp_path, "flush ruleset\n" + text)
    assert "\n".join(nft_rules(on_host)) == text
    remove_rules(long, "fifteen-letters")
    mac_spoof.check("goldnet", similar, "fifteen-letters", PORT, MAC)
    with pytest.raises(CniError):
        mac_spoof.check("goldnet", long, "fifteen-letters", PORT, MAC)


def test_gc_removes_rules_of_its_network_only(on_host, tmp_path, capsys):
    """GC removes the network's stale rules; rules that name no network are counted and stay."""
    attachments = {"valid": "goldnet", "stale": "goldnet", "elsewhere": "other"}
    for container_id, name in attachments.items():
        mac_spoof.add_rules(name, container_id, "eth0", PORT, MAC)
    mac_spoof.add_rules("goldnet", "c" * 256, "eth0", PORT, MAC)
    mac_spoof.add_rules("goldnet", "d" * 256, "eth0", PORT, MAC)
    chain = "cni-br-iface-reference-eth0"
    comment = 'comment "macspoofchk-reference-eth0"'
    load(on_host, tmp_path, f"add chain bridge nat {chain}; add rule bridge nat PREROUTING jump {chain} {comment}")
    on_host.run("nft", 'add rule bridge nat PREROUTING iifname "foreign" drop comment "not macspoofchk-x"')
    valid = frozenset({Attachment("valid", "eth0"), Attachment("c" * 256, "eth0"), Attachment("stale", "eth1")})
    gc("goldnet", valid)
    assert "GC leaves 1 rule(s) in chain nat PREROUTING" in capsys.readouterr().err
    text = "".join(nft_rules(on_host))
    for name, container_id in (("goldnet", "valid"), ("other", "elsewhere"), ("goldnet", "c" * 256)):
        mac_spoof.check(name, container_id, "eth0", PORT, MAC)
    assert ("stale" in text, "reference" in text, "foreign" in text) == (False, True, True)
    assert text.count("chain cni-br-iface-") == 7
    gc("goldnet", valid | {Attachment("reference", "eth0")})
    assert capsys.readouterr().err == ""


def test_one_container_in_several_networks(on_host):
    """If another network uses the reference's names, an attachment gets other ones; DEL affects one network."""
    networks = ("goldnet", "other", "third")
    for network in networks * 2:  # a second ADD changes nothing
        mac_spoof.add_rules(network, *ONE[1:])
    for network in networks:
        mac_spoof.check(network, *ONE[1:])
    assert sum("iifname" in line for line in nft_rules(on_host)) == 3
    gc("other", frozenset({Attachment("0123abcdef", "eth0")}))
    remove_rules("0123abcdef", "eth0")
    for network in networks[1:]:
        mac_spoof.check(network, *ONE[1:])
    gc("other", frozenset())
    mac_spoof.check("third", *ONE[1:])
    with pytest.raises(CniError):
        mac_spoof.check("other", *ONE[1:])
    remove_rules("0123abcdef", "eth0", "third")
    assert "0123abcdef" not in "".join(nft_rules(on_host))


REMOVALS = {
    "jump": "flush chain bridge nat PREROUTING",
    "chain": "flush chain bridge nat cni-br-iface-0123abcdef-eth0",
    "MAC": "flush chain bridge nat cni-br-iface-0123abcdef-eth0-mac",
    "table": "delete table bridge nat",
    "hook": "delete table bridge nat; add table bridge nat; add chain bridge nat PREROUTING",
}


@pytest.mark.parametrize("part", REMOVALS)
def test_check_reports_missing_parts(on_host, part):
    """CHECK fails with code 999 if any part is missing."""
    mac_spoof.add_rules(*ONE)
    on_host.run("nft", REMOVALS[part])
    with pytest.raises(CniError, match="is missing") as caught:
        mac_spoof.check(*ONE)
    assert caught.value.code == 999
    assert PORT in caught.value.details


def test_check_compares_interface_and_mac(on_host):
    """CHECK fails if the rules are for another interface or another MAC address."""
    mac_spoof.add_rules(*ONE)
    for port, mac in (("vethother", MAC), (PORT, OTHER_MAC)):
        with pytest.raises(CniError, match="a rule is missing in chain nat "):
            mac_spoof.check("goldnet", "0123abcdef", "eth0", port, mac)


def test_parallel_changes_are_retried(on_host, monkeypatch):
    """ADD and DEL succeed if another process changes the rules between their look-up and their change."""
    change = nft.change

    def run_before_change(action):
        def changed(*args):
            monkeypatch.setattr(nft, "change", change)
            action()
            change(*args)

        monkeypatch.setattr(nft, "change", changed)

    run_before_change(lambda: mac_spoof.add_rules("goldnet", "other", "eth0", "veth2", MAC))
    mac_spoof.add_rules(*ONE)
    mac_spoof.check(*ONE)
    mac_spoof.check("goldnet", "other", "eth0", "veth2", MAC)
    for verb in (lambda: mac_spoof.add_rules(*ONE), lambda: remove_rules("0123abcdef", "eth0")):
        run_before_change(lambda: remove_rules("0123abcdef", "eth0"))
        verb()
    assert "0123abcdef" not in "".join(nft_rules(on_host))


def test_kernel_without_nftables_for_bridges(on_host, monkeypatch):
    """STATUS reports what the kernel lacks and leaves nothing; without netfilter DEL and GC succeed."""
    assert mac_spoof.get_problem() == ""
    assert nft_rules(on_host) == []
    unknown = replace(mac_spoof._PREROUTING, hook=nft.Hook("no-such-type", 0, -300))
    monkeypatch.setattr(mac_spoof, "_PREROUTING", unknown)
    assert "no such file or directory" in mac_spoof.get_problem()

    def refuse():
        raise nft.UnavailableError("open a netlink socket", 93)

    monkeypatch.setattr(nft, "NftSocket", refuse)
    assert "protocol not supported" in mac_spoof.get_problem()
    remove_rules("0123abcdef", "eth0")
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
        raw.settimeout(20)
        opened.append(raw)
        return raw

    yield on
    for raw in opened:
        raw.close()


def frame(source, text):
    """Returns a broadcast frame."""
    return bytes(Ether(dst="ff:ff:ff:ff:ff:ff", src=source, type=TYPE) / Raw(text.ljust(46, b"\0")))


def receive_until(receiver, until):
    """Receives frames until one has the text `until`; returns source and text of each."""
    frames: list[tuple[str, bytes]] = []
    while until not in [text for _, text in frames]:
        arrived = Ether(receiver.recv(2000))
        frames.append((arrived.src, arrived[Raw].load.rstrip(b"\0")))
    return frames


def test_spoofed_frames_are_dropped(protected, new_sandbox, wire):
    """A pod's frames pass only with its MAC address; a pod without the check may send with any."""
    pod, free, listener = new_sandbox(), new_sandbox(), new_sandbox()
    result = protected.add(pod)
    unprotected = protected.having(macspoofchk=None)
    foreign = unprotected.add(free)
    unprotected.add(listener)
    pod_mac, free_mac = (item["interfaces"][2]["mac"] for item in (result, foreign))
    receiver = wire(listener)
    sender = wire(pod)
    for source in (OTHER_MAC.hex(":"), free_mac):
        sender.send(frame(source, b"spoofed"))
    sender.send(frame(pod_mac, b"honest"))
    assert receive_until(receiver, b"honest") == [(pod_mac, b"honest")]
    wire(free).send(frame(pod_mac, b"anything"))
    assert receive_until(receiver, b"anything") == [(pod_mac, b"anything")]
    assert reaches(pod, "10.22.0.1")
    protected.check(pod, result)
    protected.delete(pod)
    assert "macspoofchk" not in "".join(nft_rules(protected.host))


def test_check_with_rules(protected, sandbox):
    """CHECK of the plugin reports missing rules."""
    result = protected.add(sandbox)
    protected.host.run("nft", "flush", "chain", "bridge", "nat", "PREROUTING")
    assert "is missing" in protected.check_error(sandbox, result)
