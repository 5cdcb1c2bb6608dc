"""tap: the device's properties in every combination of keys, its MAC address, bridge and result, and refused input."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from tests.support import binaries, scripted_ipam
from tests.support.attaching import Network
from tests.support.netstate import links, shown, state

MAC = "02:00:00:00:00:77"
NAMES = {0: "root"}  # `ip` prints names
COMBINATIONS = list(itertools.product((False, True), (None, 0, 31000), (None, 0, 32000)))


def properties(pod) -> dict[str, Any]:
    """Returns what `ip -d link` shows of the device."""
    data: dict[str, Any] = shown(pod, "eth0")["linkinfo"]["info_data"]
    return data


@pytest.mark.parametrize("layer", [2, 3])
@pytest.mark.parametrize(("multi_queue", "owner", "group"), COMBINATIONS)
def test_every_combination_has_the_same_device(tap, sandbox, multi_queue, owner, group, layer):
    """Owner, group and queues are set alone and together, with MTU and MAC address; pi and vnet_hdr are off."""
    net = tap.having(multiQueue=multi_queue, owner=owner, group=group, mtu=1300, mac=MAC)
    net = net if layer == 3 else net.having(ipam=None)
    result = net.add(sandbox)
    data = properties(sandbox)
    ids = {"user": owner, "group": group}
    assert {key: data[key] for key in ("type", "pi", "vnet_hdr", "multi_queue", "persist")} == {
        "type": "tap",
        "pi": False,
        "vnet_hdr": False,
        "multi_queue": multi_queue,
        "persist": True,
    }
    assert {key: str(data[key]) for key in ids if key in data} == {
        key: NAMES.get(number, str(number)) for key, number in ids.items() if number is not None
    }
    link = shown(sandbox, "eth0")
    assert (link["mtu"], link["address"], "UP" in link["flags"]) == (1300, MAC, True)
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}


def test_largest_ids(tap, sandbox):
    """The largest user and group ID are set, and pass CHECK."""
    net = tap.having(owner=4294967294, group=4294967294)
    net.check(sandbox, net.add(sandbox))
    assert [properties(sandbox)[key] for key in ("user", "group")] == [4294967294] * 2


def test_result_has_the_device(tap, sandbox):
    """The result lists the tap device only, with its MTU since CNI 1.1.0, and the addresses."""
    result = tap.having(cniVersion="1.1.0", mtu=1400).add(sandbox)
    mac = shown(sandbox, "eth0")["address"]
    assert result["interfaces"] == [{"name": "eth0", "mac": mac, "mtu": 1400, "sandbox": sandbox.path}]
    assert result["ips"] == [{"address": "10.27.0.2/24", "gateway": "10.27.0.1", "interface": 0}]
    assert set(links(tap.host)) == {"lo"}


def test_layer_2(tap, sandbox):
    """Without `ipam` the device is up and has no address; CHECK and DEL succeed."""
    net = tap.having(ipam=None)
    result = net.add(sandbox)
    assert set(result) == {"cniVersion", "interfaces"}
    assert "UP" in shown(sandbox, "eth0")["flags"]
    assert links(sandbox)["eth0"]["addresses"] == []
    net.check(sandbox, result)
    net.delete(sandbox, result)


def test_ipv6_addresses_do_not_wait_for_a_program(tap, sandbox):
    """ADD with IPv6 addresses does not wait 5 s for duplicate address detection, which needs a carrier."""
    net = tap.having(ipam={**tap.config["ipam"], "subnet": None, "ranges": [[{"subnet": "fd00:27::/64"}]]})
    start = time.monotonic()
    result = net.add(sandbox)
    assert time.monotonic() - start < 4
    assert "tentative" in sandbox.ip("-6", "address", "show", "dev", "eth0", "scope", "global")
    net.check(sandbox, result)


def test_addresses_are_announced(tap, sandbox):
    """With IPAM the interface announces its addresses when a program opens it (arp_notify), as the reference's does."""
    tap.add(sandbox)
    assert sandbox.sysctl("net/ipv4/conf/eth0/arp_notify") == "1"


@pytest.mark.parametrize(
    ("keys", "args", "expected"),
    [
        ({"mac": "02:00:00:00:00:01"}, "", 1),
        ({"mac": "02:00:00:00:00:01"}, "MAC=02:00:00:00:00:02", 2),
        ({"mac": "02:00:00:00:00:01", "runtimeConfig": {"mac": "02:00:00:00:00:03"}}, "MAC=02:00:00:00:00:02", 3),
        ({"args": {"cni": {"mac": "02:00:00:00:00:04"}}, "mac": "02:00:00:00:00:01"}, "", 1),
    ],
)
def test_precedence_of_mac_addresses(tap, sandbox, keys, args, expected):
    """RuntimeConfig wins over CNI_ARGS, and CNI_ARGS over the key `mac`."""
    net = tap.having(ipam=None, **keys)
    result = net.add(sandbox, args=args)
    assert result["interfaces"][0]["mac"] == shown(sandbox, "eth0")["address"] == f"02:00:00:00:00:0{expected}"


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "MAC": ({"mac": "zz"}, 7, "invalid args zz for MAC addr: address zz: invalid MAC address"),
    "multicast MAC": ({"mac": "01:00:00:00:00:01"}, 7, "failed to create tap: cannot assign requested address"),
    "zero MAC": (
        {"runtimeConfig": {"mac": "00:00:00:00:00:00"}},
        7,
        "failed to create tap: cannot assign requested address",
    ),
    "MTU": ({"mtu": 67}, 7, 'failed to load netconf: "mtu" must be 0 or between 68 and 65521, not 67'),
    "large MTU": ({"mtu": 65522}, 7, 'failed to load netconf: "mtu" must be 0 or between 68 and 65521'),
    "owner": ({"owner": -1}, 7, 'failed to load netconf: "owner"'),
    "no owner": ({"owner": 4294967295}, 7, 'failed to load netconf: "owner"'),
    "group": ({"group": "root"}, 7, 'failed to load netconf: "group"'),
    "bridge": ({"bridge": "a/b"}, 7, 'failed to load netconf: "bridge" is not a valid interface name'),
    "missing bridge": ({"bridge": "nobr"}, 999, "failed to get bridge nobr: Link not found"),
    "no bridge": ({"bridge": "v0"}, 999, "failed to set tap eth0 as a port of bridge v0: operation not supported"),
    "label": ({"selinuxContext": "a:b:c:s0"}, 7, "failed set socket label: operation not supported"),
    "NUL": ({"selinuxContext": "a\0b"}, 7, 'failed to load netconf: "selinuxContext" contains a NUL character'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_input_changes_nothing(tap, sandbox, case):
    """A wrong value, a missing bridge or a label without SELinux is one error object, and nothing changes."""
    sandbox.ip("link", "add", "v0", "type", "veth", "peer", "name", "v1")
    keys, code, text = REFUSED[case]
    before = state(tap.host), state(sandbox)
    error = tap.having(**keys).run("ADD", sandbox).error()
    assert (error["code"], error["msg"][: len(text)]) == (code, text)
    assert error.get("details") or "owner" in case
    assert (state(tap.host), state(sandbox)) == before
    assert tap.leases() == {}


@pytest.mark.parametrize(
    "existing", [("link", "add", "eth0", "type", "veth", "peer", "name", "p"), ("tuntap", "add", "eth0", "mode", "tap")]
)
def test_existing_name_is_refused(tap, sandbox, existing):
    """ADD leaves an existing interface of the name untouched, also another tap device, and no device of its own."""
    sandbox.ip(*existing)
    before = state(sandbox)
    error = tap.run("ADD", sandbox).error()
    assert error["msg"] == 'failed to rename tap to "eth0": file exists'
    assert state(sandbox) == before
    assert tap.leases() == {}


def test_bad_cni_args(tap, sandbox):
    """ADD and CHECK refuse invalid CNI_ARGS, DEL of a layer 2 network tolerates them."""
    net = tap.having(ipam=None)
    result = net.add(sandbox)
    assert net.run("CHECK", sandbox, prev_result=result, args="X=1").error()["msg"].startswith("ARGS: unknown args")
    net.delete(sandbox, result, args="rubbish")
    assert set(links(sandbox)) == {"lo"}
    assert net.run("ADD", sandbox, args="X=1").error()["code"] == 4


def test_bridge_of_the_container(tap, sandbox):
    """The device becomes a port of a bridge in the container; CHECK notices when it is none."""
    sandbox.ip("link", "add", "br0", "type", "bridge")
    net = tap.having(bridge="br0", mtu=1400, mac=MAC)
    result = net.add(sandbox)
    link = shown(sandbox, "eth0")
    assert (link["master"], link["mtu"], link["address"]) == ("br0", 1400, MAC)
    net.check(sandbox, result)
    sandbox.ip("link", "set", "eth0", "nomaster")
    assert net.run("CHECK", sandbox, prev_result=result).error()["msg"] == 'Tap eth0 is not a port of bridge "br0"'
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo", "br0"}


def test_no_program_is_needed(tap, sandbox):
    """ADD and DEL run no other program: they succeed without any in PATH."""
    env = {"PATH": "/nonexistent"}
    for keys in ({}, {"owner": 0}, {"multiQueue": True, "mtu": 1300}):
        net = tap.having(**keys)
        net.delete(sandbox, net.add(sandbox, env=env), env=env)


@pytest.mark.parametrize(
    ("dns", "expected"),
    [
        (None, {"nameservers": ["10.0.0.53"]}),
        ({}, {"nameservers": ["10.0.0.53"]}),
        ({"search": ["own.example"]}, {"search": ["own.example"]}),
        ({"nameservers": []}, None),
    ],
)
def test_configured_dns_replaces_that_of_ipam(tap, sandbox, tmp_path, dns, expected):
    """The result has IPAM's DNS settings unless the network has its own, even an empty list."""
    answer = {"cniVersion": "1.0.0", "ips": [{"address": "10.27.0.9/24"}], "dns": {"nameservers": ["10.0.0.53"]}}
    scripted_ipam.install(tmp_path / "ipam", answer)
    net = tap.having(ipam={"type": scripted_ipam.NAME}, dns=dns)
    net = Network(net.host, net.config, path=f"{tmp_path / 'ipam'}:{binaries.directory()}")
    assert net.add(sandbox).get("dns") == expected
