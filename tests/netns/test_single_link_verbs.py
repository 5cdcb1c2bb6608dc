"""Rollback, CHECK, DEL, GC and STATUS of plugins that create or move one interface, and those of the reference."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support import scripted_ipam, single_link
from tests.support.netstate import links, state
from tests.support.single_link import CREATED, ON_MASTER, cases, each, param
from tests.support.uplink import UPLINK

MAC = "02:00:00:00:00:01"
IPV4 = {"address": "10.25.0.9/24", "gateway": "10.25.0.1"}
FAILURES: dict[str, tuple[dict[str, Any], str, str]] = {
    "IPAM fails": ({"ips": [IPV4]}, "[ $CNI_COMMAND != ADD ] || exit 1", "netplugin failed"),
    "no address": ({"ips": []}, "", "IPAM plugin returned missing IP config"),
    "address twice": ({"ips": [IPV4, IPV4]}, "", "failed to add IP addr 10.25.0.9/24"),
    "bad IPv4 route": (
        {"ips": [IPV4], "routes": [{"dst": "192.0.2.0/24", "gw": "203.0.113.1"}]},
        "",
        "failed to add route '192.0.2.0/24 via 203.0.113.1 dev eth0",
    ),
    "bad IPv6 route": (
        {
            "ips": [IPV4, {"address": "fd00:25::9/64", "gateway": "fd00:25::1"}],
            "routes": [{"dst": "2001:db8:9::/48", "gw": "2001:db8:8::1"}],
        },
        "",
        "failed to add route '2001:db8:9::/48 via 2001:db8:8::1 dev eth0",
    ),
}
VARIANTS: list[Any] = [param(plugin, {}) for plugin in (*CREATED, "host-device", "ptp", "bridge")]
VARIANTS += [
    param("tap", {"owner": 0, "group": 0, "mac": MAC}, label="with an owner"),
    param("tap", {"multiQueue": True, "bridge": "br0"}, label="on a bridge"),
]


@pytest.mark.parametrize(("net", "keys"), VARIANTS, indirect=["net"])
@pytest.mark.parametrize("case", FAILURES)
def test_failed_add_leaves_nothing(net, keys, sandbox, tmp_path, bin_dir, case):
    """If IPAM or a later step fails, ADD restores the state, deletes the interface and releases the addresses."""
    answer, body, text = FAILURES[case]
    sandbox.ip("link", "add", "br0", "address", "02:00:00:00:00:09", "type", "bridge")  # else it takes a port's
    ipam = scripted_ipam.install(tmp_path / "ipam", {"cniVersion": "1.1.0", **answer}, body)
    net = replace(net.having(**keys, ipam={"type": scripted_ipam.NAME}), path=f"{ipam.directory}:{bin_dir}")
    before = state(net.host), state(sandbox)
    error = net.run("ADD", sandbox).error()
    assert error["msg"].removeprefix("failed to execute IPAM delegate: ").startswith(text)  # vlan has this prefix
    assert ipam.calls() == ["ADD", "DEL"]
    assert (state(net.host), state(sandbox)) == before


# Arguments of `ip` in the pod, changed keys of the configuration, and the beginning of CHECK's message.
Change = tuple[str, dict[str, Any], str]
CHANGED: dict[str, Change] = {
    "down": ("link set eth0 down", {}, "Interface eth0 is down"),
    "no address": ("addr del 10.25.0.2/24 dev eth0", {}, "Expected address 10.25.0.2/24 is not on"),
    "no IPv6 address": ("addr del fd00:25::2/64 dev eth0", {}, "Expected address fd00:25::2/64 is not on"),
    "no route": ("route del 192.0.2.0/24", {}, "Expected route 192.0.2.0/24"),
    "another MTU": ("link set eth0 mtu 1300", {}, "Interface eth0 MTU doesn't match: "),
    "deleted": ("link del eth0", {}, "Container Interface name in prevResult: eth0 not found"),
}
MAC_CHANGED: dict[str, Change] = {"another MAC": ("link set eth0 address 02:00:00:00:00:09", {}, "Interface eth0 Mac ")}
MASTER_CHANGED: dict[str, Change] = {
    "another master": ("", {"master": "up9"}, 'Container interface eth0 is not on master "up9"'),
    "no master": ("", {"master": "zz"}, 'failed to lookup master "zz": Link not found'),
}
CHANGES: dict[str, dict[str, Change]] = {
    "macvlan": {
        **CHANGED,
        **MAC_CHANGED,
        **MASTER_CHANGED,
        "another mode": ("", {"mode": "private"}, "container macvlan mode bridge does not match expected"),
    },
    "ipvlan": {
        **CHANGED,
        **MASTER_CHANGED,
        "another mode": ("", {"mode": "l3"}, "Container IPVlan mode l2 does not match expected value: l3"),
    },
    "vlan": {
        **CHANGED,
        **MASTER_CHANGED,
        "another ID": ("", {"vlanId": 200}, "Error: VLAN ID of eth0 is 100, the configuration has 200"),
        "another protocol": ("", {"protocol": "802.1ad"}, "Error: VLAN protocol of eth0 is 802.1Q, the"),
    },
    "dummy": {**CHANGED, **MAC_CHANGED},
    "tap": {
        **CHANGED,
        **MAC_CHANGED,
        "multiQueue": ("", {"multiQueue": True}, 'Tap eth0 has another "multiQueue" than the configuration'),
        "owner": ("", {"owner": 0}, 'Tap eth0 has another "owner" than the configuration'),
        "group": ("", {"group": 5}, 'Tap eth0 has another "group" than the configuration'),
        "no bridge": ("", {"bridge": "br0"}, "failed to get bridge br0: Link not found"),
    },
}


@pytest.mark.parametrize(("net", "command", "keys", "text"), cases(CHANGES), indirect=["net"])
def test_check_reports_changes(net, sandbox, command, keys, text):
    """CHECK passes after ADD, and reports what has changed since."""
    net.host.ip("link", "add", "up9", "up", "type", "veth", "peer", "name", "up8")
    net.host.ip("link", "set", "up8", "up")
    routes = [{"dst": "192.0.2.0/24"}]
    net = net.having(ipam={**net.config["ipam"], "routes": routes})
    result = net.add(sandbox)
    net.check(sandbox, result)
    if command:
        sandbox.ip(*command.split())
    assert net.having(**keys).run("CHECK", sandbox, prev_result=result).error()["msg"].startswith(text)


ANOTHER_KIND = {
    "ptp": "Error: Container interface eth0 not of type veth/p2p",
    "bridge": "Container interface eth0 is not of type veth",
}


@each(*CREATED, *ANOTHER_KIND)
@pytest.mark.parametrize("other", ["link add eth0 type bridge", "tuntap add eth0 mode tun"])
def test_another_kind(net, sandbox, other):
    """CHECK refuses an interface of another kind; DEL leaves it alone; ptp and bridge delete any, tap a tun."""
    kind, result = net.config["type"], net.add(sandbox)
    for command in ("link set eth0 down", "link set eth0 name old0", other, "link set eth0 up"):
        sandbox.ip(*command.split())
    before = state(sandbox)
    for interface in result["interfaces"]:
        interface.pop("mac")  # which differs, too
    error = net.run("CHECK", sandbox, prev_result=result).error()
    assert error["msg"] == ANOTHER_KIND.get(kind, f"Error: Container interface eth0 not of type {kind}")
    net.delete(sandbox, result)
    assert net.leases() == {}
    if kind in (*ANOTHER_KIND, "tap" if "tun" in other else ""):
        assert "eth0" not in links(sandbox)
    else:
        assert state(sandbox) == before


@each(*CREATED, "host-device", "ptp", "bridge")
def test_check_needs_the_result_of_this_attachment(net, sandbox, new_sandbox):
    """CHECK refuses a missing prevResult, and one of another namespace or interface."""
    result, other = net.add(sandbox), new_sandbox()
    assert net.run("CHECK", sandbox).error()["msg"].lower().endswith("required prevresult missing")
    error = net.run("CHECK", other, prev_result=result, container_id=sandbox.name).error()
    assert error["msg"].endswith(f"Sandbox in prevResult {sandbox.path} doesn't match configured netns: {other.path}")
    error = net.run("CHECK", sandbox, prev_result={**result, "interfaces": []}).error()
    assert "eth0 not found" in error["msg"]


WRONG: dict[str, dict[str, Any]] = {
    "macvlan": {"mode": "?", "mtu": -1, "mac": "?"},
    "ipvlan": {"mode": "l4", "master": None},
    "vlan": {"vlanId": 4095},
    "tap": {"mtu": -1, "mac": "?", "owner": -1},
}


@each(*CREATED, "ptp", "bridge")
@pytest.mark.parametrize("missing", ["nothing", "interface", "namespace", "path", "file", "master", "attachment"])
def test_del_succeeds_without(net, sandbox, tmp_path, missing):
    """DEL releases the addresses when a part or all of the attachment is missing, twice, with a wrong configuration.

    "file" is a plain file in place of the namespace, which an unmount leaves.
    """
    kind, result = net.config["type"], None if missing == "attachment" else net.add(sandbox)
    paths = [sandbox.path] * 2
    if missing == "interface":
        sandbox.ip("link", "del", "eth0")
    elif missing == "path":
        paths = ["", None]
    elif missing in ("namespace", "file"):
        sandbox.delete()
        (tmp_path / "file").touch()
        paths = paths if missing == "namespace" else [str(tmp_path / "file")] * 2
    elif missing == "master":
        net.host.ip("link", "del", {"bridge": "cni0"}.get(kind, UPLINK))
        assert kind not in ON_MASTER or set(links(sandbox)) == {"lo"}
    wrong = net.having(**WRONG.get(kind, {}))
    for path in paths:
        wrong.delete(path, result, container_id=sandbox.name, args="X=1;IgnoreUnknown=1")
    assert net.leases() == {}
    if sandbox.exists():
        assert not [name for name in links(net.host) if name.startswith("veth")]
        assert set(links(sandbox)) == {"lo"} or (missing == "path" and kind not in ("ptp", "bridge"))


BROKEN: dict[str, list[dict[str, Any]]] = {
    **{plugin: [{"master": "zz"}, {"master": "lo"}, {"mtu": 1501}] for plugin in ON_MASTER},
    "tap": [{"mtu": 1}, {"selinuxContext": "a:b:c:s0"}],
}


@each(*CREATED, "ptp", "bridge")
def test_status(net, tmp_path):
    """STATUS checks configuration, master and IPAM, and prints nothing on success."""
    net.run("STATUS").assert_silent()
    (tmp_path / "file").write_text("")
    ipam = {**net.config["ipam"], "dataDir": str(tmp_path / "file")}
    kind = net.config["type"]
    for keys in ({"ipam": ipam}, *BROKEN.get(kind, []), *([{"mode": "x"}] if kind in ("macvlan", "ipvlan") else [])):
        assert net.having(**keys).run("STATUS").error()["code"] == 50
    if kind != "dummy":  # which has nothing but addresses
        net.having(ipam=None).run("STATUS").assert_silent()


@each(*CREATED, "ptp", "bridge")
def test_gc_releases_unlisted_addresses(net, new_sandbox):
    """GC keeps the listed attachments, whose interfaces remain, and releases the addresses of others."""
    one, two = new_sandbox(), new_sandbox()
    result = net.add(one)
    net.having(vlanId=101).add(two)
    net.gc(one)
    assert net.leases() == dict.fromkeys(single_link.ADDRESSES, one.name)
    net.check(one, result)
    net.gc()
    assert (net.leases(), "eth0" in links(one)) == ({}, True)


OF_BOTH: list[Any] = [param(plugin, {}) for plugin in (*ON_MASTER, "host-device")]
OF_BOTH += [
    param("macvlan", {"mode": "private", "mtu": 1300}, label="private"),
    param("macvlan", {"ipam": None}, label="layer 2"),
]


@pytest.mark.parametrize(("net", "keys"), OF_BOTH, indirect=["net"])
@pytest.mark.parametrize("created_by", ["podwire", "reference"])
def test_pod_is_checked_and_deleted_by_the_other(net, keys, sandbox, bin_dir, reference, created_by):
    """A pod of podwire or of the reference plugin passes CHECK and DEL of the other, which refuses a second ADD."""
    directories = [bin_dir, reference] if created_by == "podwire" else [reference, bin_dir]
    net = net.having(**keys, cniVersion="1.0.0")
    creator, deleter = (replace(net, bin_dir=directory, path=str(directory)) for directory in directories)
    before = set(links(net.host))
    result = creator.add(sandbox)
    deleter.check(sandbox, result)
    creator.check(sandbox, result)
    if (net.config["type"], created_by) != ("ipvlan", "podwire"):  # the reference's failed ADD leaves an interface
        assert deleter.run("ADD", sandbox, container_id="other").status == 1
    deleter.delete(sandbox, result)
    net.delete(sandbox, result)
    assert (set(links(net.host)), set(links(sandbox))) == (before, {"lo"})
    # The reference plugin does not release the addresses of its failed ADD.
    assert net.config.get("ipam") is None or sandbox.name not in net.leases().values()
