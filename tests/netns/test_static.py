"""static as built: alone beside the reference, and through bridge on real namespaces."""

import json
import subprocess
from dataclasses import replace

import pytest

from tests.support import binaries, netstate
from tests.support.attaching import Network, reaches
from tests.support.invocation import environment, run_plugin

ADDRESSES = [{"address": "10.24.0.7/24", "gateway": "10.24.0.1"}, {"address": "fd00:24::7/64"}]
ROUTES = [
    {"dst": "0.0.0.0/0", "gw": "10.24.0.1"},
    {"dst": "192.0.2.1/24", "gw": "10.24.0.1"},
    {"dst": "192.0.2.0/24", "gw": "10.24.0.2"},
    {"dst": "::/0"},
]
DNS = {"nameservers": ["10.24.0.1"], "domain": "d", "search": ["pods.example"], "options": ["ndots:2"]}
KINDS = ("ours", "reference")
OLD = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"]  # what Debian's reference plugins speak


def config(version="1.0.0", ipam=None, **keys):
    """Returns a network of static; `ipam` goes over its section."""
    section = {"type": "static", "addresses": ADDRESSES, "routes": ROUTES, "dns": DNS} | (ipam or {})
    return {"cniVersion": version, "name": "net", "type": "bridge", "ipam": section, **keys}


def alone(command, request, bin_dir=None, **how):
    """Runs static itself."""
    return run_plugin("static", command, request, netns="/dev/null", bin_dir=bin_dir, **how)


def settled(result):
    """Returns a result without the empty dns that older libraries print in every version."""
    return {key: value for key, value in result.items() if key != "dns" or value or result["cniVersion"] < "1.0.0"}


@pytest.fixture
def pods(bin_dir, host):
    """A bridge network whose addresses are static's."""
    return Network(host, config(bridge="cni0", isGateway=True))


GIVEN = {
    "all": {},
    "addresses only": {"ipam": {"routes": [], "dns": {}}},
    "other spelling": {"ipam": {"addresses": None, "ADDRESSES": [{"ADDRESS": "10.24.0.7/24", "Gateway": "10.24.0.9"}]}},
    "args": {"args": {"cni": {"ips": ["10.24.0.8/24"]}}},
    "runtime": {"args": {"cni": {"ips": ["10.24.0.8/24"]}}, "RuntimeConfig": {"IPs": ["10.24.0.9/24", "fd00::9/64"]}},
    "empty lists": {"args": {"cni": {"ips": []}}, "runtimeConfig": {"ips": []}},
    "mapped": {"ipam": {"addresses": [{"address": "::ffff:10.0.0.1/120"}]}},
}


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("keys", GIVEN)
def test_the_result_is_the_references(bin_dir, reference, version, keys):
    """Addresses, gateways, routes and dns are printed as by the reference in each version."""
    request = config(version, **GIVEN[keys])
    ours, theirs = alone("ADD", request).result(), alone("ADD", request, reference).result()
    assert settled(ours) == settled(theirs)


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
def test_arguments_add_what_the_reference_adds(bin_dir, reference, args):
    """CNI_ARGS gives the addresses and gateways that it gives with the reference."""
    ours, theirs = (alone("ADD", config(), of, args=args).result() for of in (None, reference))
    assert settled(ours) == settled(theirs)


def test_routes_of_1_1_0_are_given_as_written(bin_dir):
    """A route's attributes of CNI 1.1.0, zeros too, duplicates and host bits come out as they went in."""
    full = {"dst": "192.0.2.7/24", "gw": "10.24.0.1", "mtu": 1400, "advmss": 1300, "priority": 5}
    routes = [{**full, "table": 0, "scope": 0}, {"dst": "10.0.0.0/8", "table": 100, "scope": 253}, full, full]
    given = alone("ADD", config("1.1.0", {"routes": routes, "dns": {}})).result()
    assert (given["routes"], given["ips"], given.keys()) == (routes, ADDRESSES, {"cniVersion", "ips", "routes"})


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
def test_refusals_are_the_references(bin_dir, reference, case):
    """What the reference refuses is refused with its words, and a code that tells whose fault it is."""
    keys, how, code = REFUSED[case]
    request = {key: value for key, value in {**config(), **keys}.items() if value is not None}
    ours, theirs = alone("ADD", request, **how).error(), alone("ADD", request, reference, **how).error()
    assert (ours["msg"], ours["code"]) == (theirs["msg"], code)


def test_no_address_is_for_the_caller_to_judge(pods, sandbox):
    """Without any address static gives an empty result, with which bridge cannot do anything."""
    nothing = config(ipam={"addresses": [], "routes": [], "dns": {}})
    assert alone("ADD", nothing).result() == {"cniVersion": "1.0.0"}
    error = pods.having(ipam=nothing["ipam"]).run("ADD", sandbox).error()
    assert error["msg"] == "IPAM plugin returned missing IP config"
    assert set(netstate.links(sandbox)) == {"lo"}


def test_a_route_without_destination_is_refused(bin_dir):
    """The reference prints "<nil>", which bridge cannot read; we say which route it is."""
    error = alone("ADD", config(ipam={"routes": [{"gw": "10.24.0.1"}]})).error()
    assert (error["code"], '"ipam.routes[0].dst" is missing' in error["msg"]) == (7, True)
    assert '"0.0.0.0/0"' in error["details"]


def test_del_reads_nothing_and_no_verb_makes_a_file(bin_dir, tmp_path):
    """DEL succeeds with any section, any arguments, any number of times; nothing is opened for writing by any verb."""
    for ipam in ("x", {"addresses": "x"}, {"addresses": [{"address": "x"}]}):
        for _ in range(2):
            alone("DEL", config("1.1.0") | {"ipam": ipam}, args="FOO", container_id="unknown").assert_silent()
    alone("DEL", {"cniVersion": "1.1.0", "name": "net"}).assert_silent()
    for command in ("ADD", "CHECK", "DEL", "STATUS", "GC"):
        calls = _system_calls(command, tmp_path / "calls")
        assert "O_CREAT" not in calls
        assert "O_WRONLY" not in calls
        assert "mkdir" not in calls


def _system_calls(command, log):
    names = {"CNI_CONTAINERID": "cid", "CNI_NETNS": "/dev/null", "CNI_IFNAME": "eth0", "CNI_PATH": "/"}
    request = config("1.1.0", prevResult={"cniVersion": "1.1.0", "ips": ADDRESSES}, **{"cni.dev/valid-attachments": []})
    with (log.with_suffix(".json")).open("w+b") as stdin:
        stdin.write(json.dumps(request).encode())
        stdin.seek(0)
        program = str(binaries.directory() / "static")
        line = ["strace", "-f", "-e", "trace=%file", "-o", str(log), program]
        subprocess.run(line, stdin=stdin, env=environment(command, **names), check=True, stdout=subprocess.DEVNULL)
    return log.read_text()


def test_a_pod_has_what_is_written(pods, sandbox):
    """Through bridge the pod has addresses, gateway and routes as written, and reaches its gateways."""
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


def test_a_pod_has_what_it_asks_for(pods, sandbox):
    """The runtime's addresses replace the network's; a gateway in a route serves them, as its page says."""
    asked = {"runtimeConfig": {"ips": ["10.24.0.9/24"]}, "capabilities": {"ips": True}}
    pods = pods.having(isGateway=None, **asked)
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


def test_check_through_bridge(pods, sandbox):
    """CHECK tells of a network whose addresses have been edited since, and leaves the pod as it is."""
    result = pods.add(sandbox)
    before = netstate.state(sandbox)
    edits = {
        "10.24.0.8": {"address": "10.24.0.8/24", "gateway": "10.24.0.1"},
        "10.24.0.7": {"address": "10.24.0.7/24", "gateway": "10.24.0.2"},
    }
    for address, edited in edits.items():
        changed = pods.having(ipam={**pods.config["ipam"], "addresses": [edited]})
        error = changed.run("CHECK", sandbox, prev_result=result).error()
        assert error["msg"] == f"static: Failed to match addr {address} on interface eth0"
    other = pods.having(ipam={**pods.config["ipam"], "addresses": [{"address": "10.24.0.7/16"}]})
    assert "Failed to match addr 10.24.0.7 " in other.run("CHECK", sandbox, prev_result=result).error()["msg"]
    assert netstate.state(sandbox) == before


def test_check_without_result(bin_dir, reference):
    """CHECK without prevResult is refused in the reference's words."""
    errors = [alone("CHECK", config(), of).error() for of in (None, reference)]
    assert {error["msg"] for error in errors} == {"Required prevResult missing"}


def test_a_failing_add_leaves_nothing(pods, sandbox):
    """What static refuses keeps bridge from leaving an interface, a bridge, or anything else."""
    before = netstate.state(pods.host), netstate.state(sandbox)
    broken = pods.having(ipam={**pods.config["ipam"], "addresses": [{"address": "10.24.0.7"}]})
    error = broken.run("ADD", sandbox).error()
    assert "write 10.24.0.7/24, if that is a /24" in error["details"]
    assert (netstate.state(pods.host), netstate.state(sandbox)) == before


def test_status_and_gc_through_bridge(pods):
    """STATUS tells of a broken section with code 50, and is ready otherwise; GC has nothing to do."""
    pods = pods.having(cniVersion="1.1.0", **{"cni.dev/valid-attachments": []})
    broken = pods.having(ipam={**pods.config["ipam"], "addresses": [{"address": "10.24.0.7"}]})
    for net in (pods, broken):
        net.run("GC").assert_silent()
    pods.run("STATUS").assert_silent()
    assert broken.run("STATUS").error()["code"] == 50
    alone("STATUS", pods.config).assert_silent()
    alone("GC", pods.config).assert_silent()
    assert alone("STATUS", broken.config).error()["code"] == 50


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0"])
@pytest.mark.parametrize(("maker", "taker"), [KINDS, KINDS[::-1]])
@pytest.mark.parametrize("ipam", ["static stays", "static changes"])
def test_a_pod_is_taken_over(pods, sandbox, reference, version, ipam, maker, taker):
    """A pod made by one bridge and static is CHECKed and DELeted by the other bridge, with either static."""
    directories = {"ours": binaries.directory(), "reference": reference}
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.24.0.9"}, {"dst": "::/0"}]
    net = pods.having(cniVersion=version, ipam={**pods.config["ipam"], "routes": routes})

    def by(bridge, static):
        return replace(net, bin_dir=directories[bridge], path=str(directories[static]))

    made, taken = by(maker, maker), by(taker, maker if ipam == "static stays" else taker)
    result = made.add(sandbox)
    assert [ip["address"] for ip in result["ips"]] == ["10.24.0.7/24", "fd00:24::7/64"]
    taken.check(sandbox, result)
    made.check(sandbox, result)
    taken.delete(sandbox, result)
    assert (set(netstate.links(net.host)), set(netstate.links(sandbox))) == ({"lo", "cni0"}, {"lo"})
    made.delete(sandbox, result)
