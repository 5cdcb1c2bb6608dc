"""What tuning does to the pod's interface: each attribute alone, its sources, the result, DEL, and other lives."""

import json
import socket

import pytest

from tests.spec.configs import VERSIONS
from tests.support import netstate
from tests.support.bandwidth_network import connect_veth
from tests.support.tuned import ALL, TUNED, now


@pytest.fixture
def before(host, sandbox):
    """The result of the plugin before; veth0 leads to the pod."""
    return connect_veth(host, sandbox)


@pytest.mark.parametrize("place", ["the file", "args"])
@pytest.mark.parametrize("key", ALL)
def test_one_attribute(tuning, sandbox, before, key, place):
    """Each attribute, from the file or from args, is set, saved alone, checked, and restored by DEL."""
    asked = {key: ALL[key]} if place == "the file" else {"args": {"cni": {key: ALL[key]}}}
    net, whole, first = tuning.having(**asked), tuning.everything(sandbox), now(sandbox)
    result = net.add(sandbox, before)
    assert now(sandbox) == first | {key: TUNED[key]}
    assert net.backup(sandbox) == {key: first[key]}
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert tuning.everything(sandbox) == whole


def test_false_and_zero(tuning, sandbox, before):
    """`allmulti` false and `txQLen` 0 act, `promisc` false and an MTU of 0 do not."""
    sandbox.ip("link", "set", "eth0", "allmulticast", "on", "promisc", "on")
    first = now(sandbox)
    idle = tuning.having(promisc=False, mtu=0)
    assert idle.add(sandbox, before) == before
    assert (now(sandbox), idle.backups()) == (first, {})
    net = tuning.having(allmulti=False, txQLen=0, promisc=False)
    net.check(sandbox, net.add(sandbox, before))
    assert now(sandbox) == first | {"allmulti": False, "txQLen": 0}
    net.delete(sandbox)
    assert now(sandbox) == first


@pytest.mark.parametrize(
    ("sources", "wanted"),
    [({"mac"}, 1), ({"mac", "env"}, 2), ({"mac", "env", "runtime"}, 3), ({"mac", "env", "runtime", "args"}, 4)],
)
def test_which_mac_counts(tuning, sandbox, before, sources, wanted):
    """What args.cni has outweighs the runtime's MAC, that CNI_ARGS, and that the file."""
    macs = {"mac": "02:00:00:00:00:01", "env": "02:00:00:00:00:02"}
    macs |= {"runtime": "02:00:00:00:00:03", "args": "02:00:00:00:00:04"}
    net = tuning.having(
        mac=macs["mac"],
        runtimeConfig={"mac": macs["runtime"]} if "runtime" in sources else None,
        args={"cni": {"mac": macs["args"]}} if "args" in sources else None,
    )
    how = {"args": f"IgnoreUnknown=1;MAC={macs['env']}"} if "env" in sources else {}
    result = net.add(sandbox, before, **how)
    assert now(sandbox)["mac"] == result["interfaces"][2]["mac"] == f"02:00:00:00:00:0{wanted}"
    net.check(sandbox, result, **how)


@pytest.mark.parametrize("version", VERSIONS)
def test_versions(tuning, sandbox, before, version):
    """The result is prevResult in the version's shape, the pod's MAC as it is written, its MTU from 1.1.0 on."""
    if version < "0.3.0":
        given = {"cniVersion": version, "ip4": {"ip": "10.1.2.5/24"}, "dns": {}}
    else:
        given = {**before, "cniVersion": version, **({"dns": {}} if version < "1.0.0" else {})}
    result = tuning.having(cniVersion=version, mac="02-00-00-00-00-AA", mtu=1400).add(sandbox, given)
    wanted = json.loads(json.dumps(given))
    if version >= "0.3.0":
        wanted["interfaces"][2] |= {"mac": "02-00-00-00-00-AA"} | ({"mtu": 1400} if version == "1.1.0" else {})
    assert result == wanted
    assert (now(sandbox)["mac"], now(sandbox)["mtu"]) == ("02:00:00:00:00:aa", 1400)


def test_namesakes_in_the_result(tuning, sandbox, before):
    """An interface of the host, or of another sandbox, that has the same name keeps its MAC in the result."""
    others = [
        {"name": "eth0", "mac": "02:00:00:00:00:08"},
        {"name": "eth0", "mac": "02:00:00:00:00:09", "sandbox": "/x"},
    ]
    given = {**before, "interfaces": [*others, *before["interfaces"]]}
    result = tuning.having(mac="02:00:00:00:00:42").add(sandbox, given)
    assert result["interfaces"][:4] == given["interfaces"][:4]
    assert result["interfaces"][4]["mac"] == "02:00:00:00:00:42"
    elsewhere = {**before, "interfaces": [others[0], {**others[1], "sandbox": "/proc/1/ns/net"}]}
    result = tuning.having(mac="02:00:00:00:00:43").add(sandbox, elsewhere)
    assert [item["mac"] for item in result["interfaces"]] == ["02:00:00:00:00:08", "02:00:00:00:00:43"]


def test_nothing_asked_for(tuning, sandbox, before):
    """An entry with nothing in it hands on prevResult, and looks at neither pod nor interface."""
    for net, given in ((tuning, before), (tuning.having(sysctl={}), {**before, "interfaces": []})):
        assert net.run("ADD", "/no/such/netns", given).result() == {k: v for k, v in given.items() if v}
        net.run("CHECK", "/no/such/netns", given).assert_silent()
        net.run("DEL", "/no/such/netns").assert_silent()
    assert not tuning.data_dir.exists()


@pytest.mark.parametrize(
    ("keys", "code", "msg"),
    [
        ({"mac": "zz"}, 7, "invalid args zz for MAC addr: address zz: invalid MAC address"),
        ({"mac": "01:00:00:00:00:01"}, 7, "cannot assign requested address"),
        ({"mac": "00:00:00:00:00:00"}, 7, "cannot assign requested address"),
        ({"mtu": -1}, 7, '"mtu" must be between 0'),
        ({"mtu": 67}, 7, 'failed to set "eth0" to MTU 67: invalid argument'),
        ({"mtu": 65536}, 7, 'failed to set "eth0" to MTU 65536: invalid argument'),
        ({"mtu": "1400"}, 7, '"mtu" must be an integer, not a string'),
        ({"txQLen": -1}, 7, '"txQLen" must be between 0'),
        ({"promisc": "true"}, 7, '"promisc" must be true or false'),
        ({"mac": "02:00:00:00:00:00:00:01"}, 7, "invalid args 02:00:00:00:00:00:00:01 for MAC addr: invalid argument"),
    ],
)
def test_what_is_refused(tuning, sandbox, before, keys, code, msg):
    """A value that cannot be is refused before a sysctl is written, and nothing is left behind."""
    error = tuning.having(sysctl={"net.core.somaxconn": "77"}, **keys).refused(sandbox, before)
    assert error["code"] == code
    assert msg in error["msg"]


def test_without_interface_or_result(tuning, sandbox, before):
    """Without the interface ADD and CHECK fail in the reference's words, and so they do without prevResult."""
    net = tuning.having(mtu=1400)
    for command in ("ADD", "CHECK"):
        assert net.run(command, sandbox).error()["msg"] == "Required prevResult missing"
    how = {"ifname": "net1"}
    assert net.refused(sandbox, before, **how)["msg"] == 'failed to get "net1": Link not found'
    assert net.run("CHECK", sandbox, before, **how).error()["msg"] == "Cannot find container link net1"


def test_cni_args_that_nobody_knows(tuning, sandbox, before):
    """Bad CNI_ARGS fail ADD and CHECK, and a broken configuration, too; DEL restores all the same."""
    net, first = tuning.having(**ALL), now(sandbox)
    how = {"args": "FOO=1"}
    assert net.refused(sandbox, before, **how)["code"] == 4
    net.add(sandbox, before)
    assert net.run("CHECK", sandbox, before, **how).error()["code"] == 4
    net.having(mac="zz", mtu="x", sysctl=[]).delete(sandbox, **how)
    assert (now(sandbox), net.backups()) == (first, {})


def test_a_second_add_keeps_the_first_values(tuning, sandbox, before):
    """However often ADD is run, and with whatever more, DEL restores what there was before the first one."""
    whole, first = tuning.everything(sandbox), now(sandbox)
    tuning.having(mtu=1400).add(sandbox, before)
    net = tuning.having(mtu=1300, txQLen=7)
    net.add(sandbox, before)
    net.add(sandbox, before)
    assert net.backup(sandbox) == {"mtu": first["mtu"], "txQLen": first["txQLen"]}
    net.delete(sandbox)
    assert tuning.everything(sandbox) == whole


def test_two_entries_in_one_chain(tuning, sandbox, before):
    """DEL of a chain with tuning twice brings the first values back, and finds nothing the second time."""
    whole = tuning.everything(sandbox)
    one, other = tuning.having(mtu=1400, mac="02:00:00:00:00:42"), tuning.having(mtu=1300, promisc=True)
    result = other.add(sandbox, one.add(sandbox, before))
    other.delete(sandbox, result)
    assert tuning.everything(sandbox) == whole
    one.delete(sandbox, result)
    assert tuning.everything(sandbox) == whole


def test_another_life_of_the_container(tuning, new_sandbox, host):
    """A backup that was left of another life of a container is replaced by ADD, and is nothing to DEL."""
    net, lives = tuning.having(mtu=1300), [new_sandbox(), new_sandbox()]
    results = [connect_veth(host, pod, f"veth{number}") for number, pod in enumerate(lives)]
    how = {"container_id": "same"}
    lives[0].ip("link", "set", "eth0", "mtu", "9000")
    net.add(lives[0], results[0], **how)
    net.delete(lives[1], **how)
    assert (now(lives[1])["mtu"], net.backups()) == (1500, {})
    net.add(lives[0], results[0], **how)
    net.add(lives[1], results[1], **how)
    assert json.loads(net.backups()["same_eth0.json"]) == {"mtu": 1500}
    net.delete(lives[1], **how)
    assert (now(lives[1])["mtu"], net.backups(), net.notes()) == (1500, {}, {})


def test_an_interface_made_anew(tuning, host, sandbox, before):
    """The same holds for a new interface of the name in the same namespace: it gets nothing of the old one's."""
    net = tuning.having(txQLen=500)
    sandbox.ip("link", "set", "eth0", "txqueuelen", "7")
    net.add(sandbox, before)
    sandbox.ip("link", "delete", "eth0")
    connect_veth(host, sandbox)
    net.delete(sandbox)
    assert (now(sandbox)["txQLen"], net.backups()) == (1000, {})


@pytest.mark.parametrize("gone", ["netns", "empty", "plain file", "link", "unreadable", "link file"])
def test_what_is_gone(tuning, new_sandbox, host, tmp_path, gone):
    """DEL succeeds on whatever is gone or broken, and removes backup and note; again it finds nothing."""
    net, pod = tuning.having(**ALL), new_sandbox()
    net.add(pod, connect_veth(host, pod))
    netns = pod
    path = tuning.data_dir / f"{pod.name}_eth0.json"
    if gone == "netns":
        netns = "/run/netns/no-such"
    elif gone == "empty":
        netns = None
    elif gone == "plain file":
        netns = str(tmp_path / "plain")
        (tmp_path / "plain").touch()
    elif gone == "link":
        pod.ip("link", "delete", "eth0")
    elif gone == "unreadable":
        path.write_text("{")
    else:
        target = tmp_path / "elsewhere"
        path.rename(target)
        path.symlink_to(target)
    for _ in range(2):
        assert net.delete(netns, container_id=pod.name) == ""
        assert (net.backups(), net.notes()) == ({}, {})
    assert gone != "link file" or (tmp_path / "elsewhere").exists()


def test_what_cannot_be_restored(tuning, sandbox, before):
    """What the interface does not take any more is told on stderr, the rest is restored, and DEL succeeds."""
    net, first = tuning.having(**ALL), now(sandbox)
    net.add(sandbox, before)
    (path,) = tuning.data_dir.iterdir()
    path.write_text(json.dumps(net.backup(sandbox) | {"mtu": 60}))
    said = net.delete(sandbox)
    assert said.startswith('tuning: cannot restore "eth0": set "eth0" to MTU 60: invalid argument')
    assert (now(sandbox), net.backups()) == (first | {"mtu": 1300}, {})


def test_a_capture_that_runs(tuning, sandbox, before):
    """An interface that a capture makes promiscuous is neither failed by CHECK nor left so by DEL."""
    with sandbox.entered():
        capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with capture:
        capture.bind(("eth0", 3))
        membership = netstate.shown(sandbox, "eth0")["ifindex"].to_bytes(4, "little") + b"\1" + bytes(11)
        capture.setsockopt(263, 1, membership)  # SOL_PACKET, PACKET_ADD_MEMBERSHIP: PACKET_MR_PROMISC
        assert netstate.shown(sandbox, "eth0")["promiscuity"] == 1
        plain = tuning.having(mtu=1400)
        plain.check(sandbox, plain.add(sandbox, before))
        net = tuning.having(promisc=True)
        net.add(sandbox, before)
        net.delete(sandbox)
    assert netstate.shown(sandbox, "eth0")["promiscuity"] == 0


OTHER = "02:00:00:00:00:43"
CHANGES = {
    "mac": (["address", OTHER], f"Ethernet of eth0 is {ALL['mac']}, current value is {OTHER}"),
    "mtu": (["mtu", "1399"], "MTU of eth0 is 1300, current value is 1399"),
    "allmulti": (["allmulticast", "off"], "all-multicast mode of eth0 is true, current value is false"),
    "txQLen": (["txqueuelen", "7"], "Transmit Queue Length of eth0 is 500, current value is 7"),
}


@pytest.mark.parametrize("key", CHANGES)
def test_check_finds_what_has_changed(tuning, sandbox, before, key):
    """CHECK tells which attribute is not as configured, with both values; one that is not configured is no matter."""
    words, told = CHANGES[key]
    net = tuning.having(**ALL)
    net.add(sandbox, before)
    sandbox.ip("link", "set", "eth0", *words)
    error = net.run("CHECK", sandbox, before).error()
    assert (error["code"], error["msg"]) == (999, f"Error: Tuning configured {told}")
    net.having(**{key: None}).check(sandbox, before)


def test_check_of_promisc(tuning, sandbox, before):
    """CHECK tells that promiscuous mode is gone, and takes a MAC in any spelling."""
    net = tuning.having(promisc=True, mac="02-00-00-00-00-AA")
    net.check(sandbox, net.add(sandbox, before))
    sandbox.ip("link", "set", "eth0", "promisc", "off")
    error = net.run("CHECK", sandbox, before).error()
    assert error["msg"] == "Error: Tuning link eth0 configured promisc is true, current value is 0"
