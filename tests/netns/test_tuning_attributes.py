"""Attributes of the pod's interface: each attribute alone, its sources, the result, restoring by DEL, CHECK."""

import json
import socket

import pytest

from tests.spec.configs import VERSIONS
from tests.support import netstate
from tests.support.bandwidth_network import connect_veth
from tests.support.tuning_network import ALL, get_attributes


@pytest.mark.parametrize("place", ["the file", "args"])
@pytest.mark.parametrize("key", ALL)
def test_one_attribute(tuning, sandbox, prev_result, key, place):
    """Each attribute, from the file or from args, is set, saved alone, checked, and restored by DEL."""
    keys = {key: ALL[key]} if place == "the file" else {"args": {"cni": {key: ALL[key]}}}
    net, state, first = tuning.having(**keys), tuning.everything(sandbox), get_attributes(sandbox)
    result = net.add(sandbox, prev_result)
    assert get_attributes(sandbox) == first | {key: ALL[key]}
    assert net.backup(sandbox) == {key: first[key]}
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert tuning.everything(sandbox) == state


def test_false_and_zero(tuning, sandbox, prev_result):
    """`allmulti` false and `txQLen` 0 are set, `promisc` false and an MTU of 0 have no effect."""
    sandbox.ip("link", "set", "eth0", "allmulticast", "on", "promisc", "on")
    first = get_attributes(sandbox)
    idle = tuning.having(promisc=False, mtu=0)
    assert idle.add(sandbox, prev_result) == prev_result
    assert (get_attributes(sandbox), idle.backups()) == (first, {})
    net = tuning.having(allmulti=False, txQLen=0, promisc=False)
    net.check(sandbox, net.add(sandbox, prev_result))
    assert get_attributes(sandbox) == first | {"allmulti": False, "txQLen": 0}
    net.delete(sandbox)
    assert get_attributes(sandbox) == first


@pytest.mark.parametrize(
    ("sources", "last_byte"),
    [({"mac"}, 1), ({"mac", "env"}, 2), ({"mac", "env", "runtime"}, 3), ({"mac", "env", "runtime", "args"}, 4)],
)
def test_precedence_of_macs(tuning, sandbox, prev_result, sources, last_byte):
    """MACs take precedence in the order args.cni, runtimeConfig, CNI_ARGS, file."""
    macs = {"mac": "02:00:00:00:00:01", "env": "02:00:00:00:00:02"}
    macs |= {"runtime": "02:00:00:00:00:03", "args": "02:00:00:00:00:04"}
    net = tuning.having(
        mac=macs["mac"],
        runtimeConfig={"mac": macs["runtime"]} if "runtime" in sources else None,
        args={"cni": {"mac": macs["args"]}} if "args" in sources else None,
    )
    arguments = {"args": f"IgnoreUnknown=1;MAC={macs['env']}"} if "env" in sources else {}
    result = net.add(sandbox, prev_result, **arguments)
    assert get_attributes(sandbox)["mac"] == result["interfaces"][2]["mac"] == f"02:00:00:00:00:0{last_byte}"
    net.check(sandbox, result, **arguments)


@pytest.mark.parametrize("version", VERSIONS)
def test_result_of_each_version(tuning, sandbox, prev_result, version):
    """The result is prevResult with the pod's MAC in the configured spelling, and its MTU since CNI 1.1.0."""
    if version < "0.3.0":
        earlier_result = {"cniVersion": version, "ip4": {"ip": "10.1.2.5/24"}, "dns": {}}
    else:
        earlier_result = {**prev_result, "cniVersion": version, **({"dns": {}} if version < "1.0.0" else {})}
    net = tuning.having(cniVersion=version, mac="02-00-00-00-00-AA", mtu=1400)
    result = net.add(sandbox, earlier_result)
    expected = json.loads(json.dumps(earlier_result))
    if version >= "0.3.0":
        expected["interfaces"][2] |= {"mac": "02-00-00-00-00-AA"} | ({"mtu": 1400} if version == "1.1.0" else {})
    assert result == expected
    assert (get_attributes(sandbox)["mac"], get_attributes(sandbox)["mtu"]) == ("02:00:00:00:00:aa", 1400)
    if version >= "0.4.0":
        net.check(sandbox, result)


def test_interfaces_of_the_same_name_in_the_result(tuning, sandbox, prev_result):
    """An interface of the same name on the host, or in another sandbox, keeps its MAC in the result."""
    others = [
        {"name": "eth0", "mac": "02:00:00:00:00:08"},
        {"name": "eth0", "mac": "02:00:00:00:00:09", "sandbox": "/x"},
    ]
    earlier_result = {**prev_result, "interfaces": [*others, *prev_result["interfaces"]]}
    result = tuning.having(mac="02:00:00:00:00:42").add(sandbox, earlier_result)
    assert result["interfaces"][:4] == earlier_result["interfaces"][:4]
    assert result["interfaces"][4]["mac"] == "02:00:00:00:00:42"
    elsewhere = {**prev_result, "interfaces": [others[0], {**others[1], "sandbox": "/proc/1/ns/net"}]}
    result = tuning.having(mac="02:00:00:00:00:43").add(sandbox, elsewhere)
    assert [item["mac"] for item in result["interfaces"]] == ["02:00:00:00:00:08", "02:00:00:00:00:43"]


def test_empty_configuration(tuning, sandbox, prev_result):
    """With an empty configuration ADD returns prevResult, and no verb opens the namespace."""
    for net, earlier_result in ((tuning, prev_result), (tuning.having(sysctl={}), {**prev_result, "interfaces": []})):
        assert net.run("ADD", "/no/such/netns", earlier_result).result() == {
            k: v for k, v in earlier_result.items() if v
        }
        net.run("CHECK", "/no/such/netns", earlier_result).assert_silent()
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
def test_invalid_values_are_refused(tuning, sandbox, prev_result, keys, code, msg):
    """An invalid value is refused before any sysctl is written, and ADD changes nothing."""
    error = tuning.having(sysctl={"net.core.somaxconn": "77"}, **keys).add_error(sandbox, prev_result)
    assert error["code"] == code
    assert msg in error["msg"]


def test_missing_interface_or_prev_result(tuning, sandbox, prev_result):
    """Without the interface, or without prevResult, ADD and CHECK fail with the reference plugin's texts."""
    net = tuning.having(mtu=1400)
    for command in ("ADD", "CHECK"):
        assert net.run(command, sandbox).error()["msg"] == "Required prevResult missing"
    arguments = {"ifname": "net1"}
    assert net.add_error(sandbox, prev_result, **arguments)["msg"] == 'failed to get "net1": Link not found'
    assert net.check_error(sandbox, prev_result, **arguments) == "Cannot find container link net1"


def test_unknown_cni_args(tuning, sandbox, prev_result):
    """ADD and CHECK refuse unknown CNI_ARGS, but DEL restores the interface even with an invalid configuration."""
    net, first = tuning.having(**ALL), get_attributes(sandbox)
    arguments = {"args": "FOO=1"}
    assert net.add_error(sandbox, prev_result, **arguments)["code"] == 4
    net.add(sandbox, prev_result)
    assert net.run("CHECK", sandbox, prev_result, **arguments).error()["code"] == 4
    net.having(mac="zz", mtu="x", sysctl=[]).delete(sandbox, **arguments)
    assert (get_attributes(sandbox), net.backups()) == (first, {})


def test_two_tunings_in_one_list(tuning, sandbox, prev_result):
    """DEL of a list with tuning twice restores the first values, and the second DEL has nothing to do."""
    state = tuning.everything(sandbox)
    one, other = tuning.having(mtu=1400, mac="02:00:00:00:00:42"), tuning.having(mtu=1300, promisc=True)
    result = other.add(sandbox, one.add(sandbox, prev_result))
    other.delete(sandbox, result)
    assert tuning.everything(sandbox) == state
    one.delete(sandbox, result)
    assert tuning.everything(sandbox) == state


def test_backup_of_another_life_of_the_container(tuning, new_sandbox, host):
    """A backup from another life of the container is replaced by ADD, and not restored by DEL."""
    net, lives = tuning.having(mtu=1300), [new_sandbox(), new_sandbox()]
    results = [connect_veth(host, pod, f"veth{number}") for number, pod in enumerate(lives)]
    arguments = {"container_id": "same"}
    lives[0].ip("link", "set", "eth0", "mtu", "9000")
    net.add(lives[0], results[0], **arguments)
    net.delete(lives[1], **arguments)
    assert (get_attributes(lives[1])["mtu"], net.backups()) == (1500, {})
    net.add(lives[0], results[0], **arguments)
    net.add(lives[1], results[1], **arguments)
    assert json.loads(net.backups()["same_eth0.json"]) == {"mtu": 1500}
    net.delete(lives[1], **arguments)
    assert (get_attributes(lives[1])["mtu"], net.backups(), net.notes()) == (1500, {}, {})


def test_recreated_interface(tuning, host, sandbox, prev_result):
    """DEL does not restore values of a deleted interface on a new one of the same name."""
    net = tuning.having(txQLen=500)
    sandbox.ip("link", "set", "eth0", "txqueuelen", "7")
    net.add(sandbox, prev_result)
    sandbox.ip("link", "delete", "eth0")
    connect_veth(host, sandbox)
    net.delete(sandbox)
    assert (get_attributes(sandbox)["txQLen"], net.backups()) == (1000, {})


@pytest.mark.parametrize("missing", ["netns", "empty", "plain file", "link", "unreadable"])
def test_del_with_missing_or_invalid_parts(tuning, new_sandbox, host, tmp_path, missing):
    """DEL removes backup and note even if namespace or interface is missing, or the backup is invalid."""
    net, pod = tuning.having(**ALL), new_sandbox()
    net.add(pod, connect_veth(host, pod))
    netns = pod
    if missing == "netns":
        netns = "/run/netns/no-such"
    elif missing == "empty":
        netns = None
    elif missing == "plain file":
        netns = str(tmp_path / "plain")
        (tmp_path / "plain").touch()
    elif missing == "link":
        pod.ip("link", "delete", "eth0")
    else:
        (tuning.data_dir / f"{pod.name}_eth0.json").write_text("{")
    for _ in range(2):
        assert net.delete(netns, container_id=pod.name) == ""
        assert (net.backups(), net.notes()) == ({}, {})


def test_value_that_cannot_be_restored(tuning, sandbox, prev_result):
    """DEL reports a value that the interface refuses on stderr, restores the others, and succeeds."""
    net, first = tuning.having(**ALL), get_attributes(sandbox)
    net.add(sandbox, prev_result)
    (path,) = tuning.data_dir.iterdir()
    path.write_text(json.dumps(net.backup(sandbox) | {"mtu": 60}))
    stderr = net.delete(sandbox)
    assert stderr.startswith('tuning: cannot restore "eth0": set "eth0" to MTU 60: invalid argument')
    assert (get_attributes(sandbox), net.backups()) == (first | {"mtu": 1300}, {})


def test_running_packet_capture(tuning, sandbox, prev_result):
    """CHECK accepts an interface that a packet capture makes promiscuous, and DEL does not restore that mode."""
    with sandbox.entered():
        capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with capture:
        capture.bind(("eth0", 3))
        membership = netstate.shown(sandbox, "eth0")["ifindex"].to_bytes(4, "little") + b"\1" + bytes(11)
        capture.setsockopt(263, 1, membership)  # SOL_PACKET, PACKET_ADD_MEMBERSHIP: PACKET_MR_PROMISC
        assert netstate.shown(sandbox, "eth0")["promiscuity"] == 1
        plain = tuning.having(mtu=1400)
        plain.check(sandbox, plain.add(sandbox, prev_result))
        net = tuning.having(promisc=True)
        net.add(sandbox, prev_result)
        net.delete(sandbox)
    assert netstate.shown(sandbox, "eth0")["promiscuity"] == 0


OTHER = "02:00:00:00:00:43"
CHANGES = {
    "mac": (["address", OTHER], f"configured Ethernet of eth0 is {ALL['mac']}, current value is {OTHER}"),
    "mtu": (["mtu", "1399"], "configured MTU of eth0 is 1300, current value is 1399"),
    "allmulti": (["allmulticast", "off"], "configured all-multicast mode of eth0 is true, current value is false"),
    "txQLen": (["txqueuelen", "7"], "configured Transmit Queue Length of eth0 is 500, current value is 7"),
    "promisc": (["promisc", "off"], "link eth0 configured promisc is true, current value is 0"),
}


@pytest.mark.parametrize("key", CHANGES)
def test_check_reports_a_changed_attribute(tuning, sandbox, prev_result, key):
    """CHECK reports a changed attribute with both values, and ignores attributes that are not configured."""
    arguments, text = CHANGES[key]
    net = tuning.having(**ALL)
    net.add(sandbox, prev_result)
    sandbox.ip("link", "set", "eth0", *arguments)
    error = net.run("CHECK", sandbox, prev_result).error()
    assert (error["code"], error["msg"]) == (999, f"Error: Tuning {text}")
    net.having(**{key: None}).check(sandbox, prev_result)
