"""The built static: alone, compared with the reference plugin, and with bridge in real namespaces."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support import binaries, netstate
from tests.support.attaching import Network, reaches
from tests.support.invocation import run_plugin
from tests.support.single_link import CREATED, each

ADDRESSES = [{"address": "10.24.0.7/24", "gateway": "10.24.0.1"}, {"address": "fd00:24::7/64"}]
ROUTES = [
    {"dst": "0.0.0.0/0", "gw": "10.24.0.1"},
    {"dst": "192.0.2.1/24", "gw": "10.24.0.1"},
    {"dst": "192.0.2.0/24", "gw": "10.24.0.2"},
    {"dst": "::/0"},
]
DNS = {"nameservers": ["10.24.0.1"], "domain": "d", "search": ["pods.example"], "options": ["ndots:2"]}
KINDS = ("podwire", "reference")
OLD = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"]  # the versions of Debian's reference plugins


def config(version="1.0.0", ipam=None, **keys):
    """Returns a network with static; `ipam` overrides keys of its section."""
    section = {"type": "static", "addresses": ADDRESSES, "routes": ROUTES, "dns": DNS} | (ipam or {})
    return {"cniVersion": version, "name": "net", "type": "bridge", "ipam": section, **keys}


def run_static(command, request, bin_dir=None, **options):
    """Runs static alone."""
    return run_plugin("static", command, request, netns="/dev/null", bin_dir=bin_dir, **options)


def without_empty_dns(result):
    """Returns a result without the empty dns that older libraries print in every version."""
    return {key: value for key, value in result.items() if key != "dns" or value or result["cniVersion"] < "1.0.0"}


@pytest.fixture
def pods(bin_dir, host):
    """A bridge network with addresses of static."""
    return Network(host, config(bridge="cni0", isGateway=True))


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "addresses only": {"ipam": {"routes": [], "dns": {}}},
    "other spelling": {"ipam": {"addresses": None, "ADDRESSES": [{"ADDRESS": "10.24.0.7/24", "Gateway": "10.24.0.9"}]}},
    "args": {"args": {"cni": {"ips": ["10.24.0.8/24"]}}},
    "runtime": {"args": {"cni": {"ips": ["10.24.0.8/24"]}}, "RuntimeConfig": {"IPs": ["10.24.0.9/24", "fd00::9/64"]}},
    "empty lists": {"args": {"cni": {"ips": []}}, "runtimeConfig": {"ips": []}},
    "mapped": {"ipam": {"addresses": [{"address": "::ffff:10.0.0.1/120"}]}},
}


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("keys", CONFIGURATIONS)
def test_result_equals_the_references(bin_dir, reference, version, keys):
    """Addresses, gateways, routes and dns equal the reference plugin's in each version."""
    request = config(version, **CONFIGURATIONS[keys])
    results = [run_static("ADD", request, bin_dir).result() for bin_dir in (None, reference)]
    assert without_empty_dns(results[0]) == without_empty_dns(results[1])


@pytest.mark.parametrize(
    "args",
    [
        "IP=10.24.1.7/24, fd00:25::7/64,10.24.0.8/24;GATEWAY=10.24.0.1,10.24.1.1,fd00:25::1,192.0.2.1",
        "IP=10.24.1.7/24;GATEWAY=10.24.1.1,10.24.1.2",
        "GATEWAY=10.24.0.254",
        "IgnoreUnknown=1;FOO=1;IP=10.24.1.7/24",
        "IP=;GATEWAY=",
    ],
)
def test_cni_args_add_the_references_addresses(bin_dir, reference, args):
    """CNI_ARGS add the same addresses and gateways as with the reference plugin."""
    results = [run_static("ADD", config(), bin_dir, args=args).result() for bin_dir in (None, reference)]
    assert without_empty_dns(results[0]) == without_empty_dns(results[1])


REFUSED = {
    "no section": ({"ipam": None}, {}, 7),
    "no section, runtime": ({"ipam": None, "runtimeConfig": {"ips": ["10.24.0.9/24"]}}, {}, 7),
    "no prefix": (config(ipam={"addresses": [{"address": "10.24.0.7"}]}), {}, 7),
    "no address": (config(ipam={"addresses": [{"gateway": "10.24.0.1"}]}), {}, 7),
    "no prefix, args": (config(args={"cni": {"ips": ["10.24.0.7"]}}), {}, 7),
    "no prefix, runtime": (config(runtimeConfig={"ips": ["10.24.0.7"]}), {}, 7),
    "no prefix, CNI_ARGS": (config(), {"args": "IP=10.24.0.7"}, 4),
    "trailing comma": (config(), {"args": "IP=10.24.0.7/24,"}, 4),
    "bad gateway": (config(), {"args": "GATEWAY=zz"}, 4),
    "unknown argument": (config(), {"args": "FOO=1"}, 4),
    "two of a family": (config("0.2.0", {"addresses": [ADDRESSES[0]] * 2}), {}, 7),
    "two of a family, no version": (config("", {"addresses": [ADDRESSES[0]] * 2}), {}, 7),
    "nothing in an old result": (config("0.2.0", {"addresses": []}), {}, 7),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_equal_the_references(bin_dir, reference, case):
    """The texts equal the reference plugin's, and the code distinguishes configuration from environment."""
    keys, options, code = REFUSED[case]
    request = {key: value for key, value in {**config(), **keys}.items() if value is not None}
    error = run_static("ADD", request, **options).error()
    assert (error["msg"], error["code"]) == (run_static("ADD", request, reference, **options).error()["msg"], code)


def test_without_addresses_the_result_is_empty(bin_dir):
    """Without addresses static returns an empty result."""
    nothing = config(ipam={"addresses": [], "routes": [], "dns": {}})
    assert run_static("ADD", nothing).result() == {"cniVersion": "1.0.0"}


def test_route_without_destination_is_refused(bin_dir):
    """The reference plugin prints "<nil>", which bridge cannot read; podwire's error names the route."""
    error = run_static("ADD", config(ipam={"routes": [{"gw": "10.24.0.1"}]})).error()
    assert (error["code"], '"ipam.routes[0].dst" is missing' in error["msg"]) == (7, True)
    assert '"0.0.0.0/0"' in error["details"]


def test_pod_has_the_configured_addresses(pods, sandbox):
    """With bridge the pod has the configured addresses, gateway and routes, and reaches its gateways."""
    result = pods.add(sandbox)
    assert [(ip["address"], ip["gateway"]) for ip in result["ips"]] == [
        ("10.24.0.7/24", "10.24.0.1"),
        ("fd00:24::7/64", "fd00:24::1"),
    ]
    assert (result["dns"], [route["dst"] for route in result["routes"]]) == (DNS, [route["dst"] for route in ROUTES])
    listed = sandbox.ip("route")
    assert "default via 10.24.0.1 dev eth0" in listed
    assert "192.0.2.0/24 via 10.24.0.1 dev eth0" in listed.replace("nexthop ", "")
    assert "default via fd00:24::1 dev eth0" in sandbox.ip("-6", "route")
    assert reaches(sandbox, "10.24.0.1")
    assert reaches(sandbox, "fd00:24::1")
    pods.check(sandbox, result)
    pods.delete(sandbox, result)
    assert set(netstate.links(sandbox)) == {"lo"}


def test_pod_has_the_requested_address(pods, sandbox):
    """The runtime's addresses replace the network's; they use a gateway in a route, as documented."""
    capability = {"runtimeConfig": {"ips": ["10.24.0.9/24"]}, "capabilities": {"ips": True}}
    pods = pods.having(isGateway=None, **capability)
    pods.host.ip("link", "add", "cni0", "type", "bridge")
    pods.host.ip("addr", "add", "10.24.0.1/24", "dev", "cni0")
    pods = pods.having(ipam={"type": "static", "routes": [{"dst": "0.0.0.0/0", "gw": "10.24.0.1"}]})
    result = pods.add(sandbox)
    assert result["ips"] == [{"address": "10.24.0.9/24", "interface": 2}]
    assert "default via 10.24.0.1 dev eth0" in sandbox.ip("route")
    assert reaches(sandbox, "10.24.0.1")
    pods.check(sandbox, result)
    pods.having(runtimeConfig=None).check(sandbox, result)
    pods.delete(sandbox, result)


@pytest.mark.parametrize("version", ["0.4.0", "1.1.0"])
@pytest.mark.parametrize("routes", [[{"dst": "0.0.0.0/0"}], [{"dst": "192.0.2.0/24", "gw": "169.254.1.1"}]])
def test_gateway_in_no_subnet(pods, sandbox, version, routes):
    """A single address needs a route of scope link to its gateway: the error prints it, and then ADD succeeds."""
    addresses = [{"address": "10.24.0.7/32", "gateway": "169.254.1.1"}]
    conf = config(version, {"addresses": addresses, "routes": routes}, bridge="cni0")
    error = replace(pods, config=conf).run("ADD", sandbox).error()
    assert "the gateway 169.254.1.1 is in no subnet of the interface" in error["details"]
    (to_gateway,) = json.loads(error["details"].split('"routes": ')[1].replace(", ...", ""))
    conf["ipam"]["routes"] = [to_gateway, *routes]
    replace(pods, config=conf).add(sandbox)
    assert "169.254.1.1 dev eth0 scope link" in sandbox.ip("route")


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0"])
@pytest.mark.parametrize(("first", "second"), [KINDS, KINDS[::-1]])
@pytest.mark.parametrize("ipam", ["static stays", "static changes"])
def test_pod_is_handed_over(pods, sandbox, reference, version, ipam, first, second):
    """CHECK and DEL of the other bridge, with either static, accept a pod of one bridge and static."""
    directories = {"podwire": binaries.directory(), "reference": reference}
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.24.0.9"}, {"dst": "::/0"}]
    net = pods.having(cniVersion=version, ipam={**pods.config["ipam"], "routes": routes})

    def network_of(bridge, static):
        return replace(net, bin_dir=directories[bridge], path=str(directories[static]))

    before, after = network_of(first, first), network_of(second, first if ipam == "static stays" else second)
    result = before.add(sandbox)
    assert [ip["address"] for ip in result["ips"]] == ["10.24.0.7/24", "fd00:24::7/64"]
    after.check(sandbox, result)
    before.check(sandbox, result)
    after.delete(sandbox, result)
    assert (set(netstate.links(net.host)), set(netstate.links(sandbox))) == ({"lo", "cni0"}, {"lo"})
    before.delete(sandbox, result)


@each(*CREATED, "host-device", "ptp", "bridge")
def test_every_interface_plugin_sets_the_mtu_of_a_route(net, sandbox):
    """The route has `mtu` and `advmss` of the IPAM result with each plugin; the reference plugins ignore them."""
    route = {"dst": "203.0.113.0/24", "gw": "10.24.0.1", "mtu": 1300, "advmss": 1200}
    net.having(ipam={"type": "static", "addresses": ADDRESSES[:1], "routes": [route]}).add(sandbox)
    (installed,) = json.loads(sandbox.ip("-j", "route", "show", "203.0.113.0/24"))
    assert installed["metrics"] == [{"mtu": 1300, "advmss": 1200}]
