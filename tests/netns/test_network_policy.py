"""networkPolicy of bridge and ptp: the record, the wait for podwire-agent, the removal (attachment.policy).

The rules of the protocol have names (agent/policy/gate_server.py has the other side): record-always, file-of-boot,
wait, generation, lock, filter-first.
"""

import fcntl
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attachment.policy import table
from tests.support import policy_node
from tests.support.attaching import Network, address
from tests.support.invocation import finish
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList
from tests.support.netstate import nft_rules
from tests.support.policy_node import PODS, agent, files, records, write_namespaces
from tests.support.repair_node import Node

pytestmark = pytest.mark.needs("nft_inet")
ARGS = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=1-2"
AGENTS_TABLE = """
table inet podwire_policy {
    map egress4 { type ipv4_addr : verdict; elements = { ADDRESS : goto one, 10.9.9.9 : goto one } }
    map ingress4 { type ipv4_addr : verdict; elements = { ADDRESS : goto one } }
    set self4 { type ipv4_addr . ipv4_addr; elements = { ADDRESS . ADDRESS, 10.9.9.9 . 10.9.9.9 } }
    chain one { counter drop; }
}
"""


@pytest.fixture(autouse=True)
def private_directory(root) -> Iterator[None]:
    with policy_node.private_directory():
        yield


@pytest.fixture(params=["bridge", "ptp"])
def policed(request) -> Network:
    """A dual-stack network of each plugin with networkPolicy."""
    if request.param == "ptp":
        network: Network = request.getfixturevalue("routed")
        return network.having(networkPolicy=True)
    network = request.getfixturevalue("dual_network")
    return network.having(networkPolicy=True, bridgeNetfilter=True)


@pytest.fixture
def simple(network) -> Network:
    """An IPv4 network of bridge with networkPolicy."""
    policed: Network = network.having(networkPolicy=True, bridgeNetfilter=True)
    return policed


def current(request: dict[str, Any]) -> dict[str, Any]:
    """The answer of an agent whose file is the one that ADD has read."""
    return {"generation": request["generation"]}


def state(network: Network, pod: Namespace) -> Any:
    """Returns everything that an attachment may leave."""
    elements = [line for line in nft_rules(network.host) if "elements" in line or '"veth' in line]
    return network.everything(pod), network.leases(), files(), elements


def traced(network: Network, command: str, pod: Namespace) -> list[str]:
    """Runs a verb; returns the system calls that name the directory of policies."""
    outcome = network.run(command, pod, before=("strace", "-f", "-e", "trace=file,network"), args=ARGS)
    assert outcome.status == 0
    return [line for line in outcome.stderr.splitlines() if "podwire/policy" in line]


def test_network_without_the_key_costs_nothing(network, sandbox):
    """Without networkPolicy ADD and CHECK do not touch the directory, and DEL tries to open the record once."""
    write_namespaces("shop", strict=True)
    assert traced(network, "ADD", sandbox) == []
    (call,) = traced(network, "DEL", sandbox)
    assert "openat" in call
    assert "ENOENT" in call
    assert "podwire_guard" not in "".join(nft_rules(network.host))


def test_add_leaves_a_record_and_del_removes_it(policed, sandbox):
    """Rule record-always: a pod of any namespace has a record; without policies it starts without the agent."""
    write_namespaces("other")
    before = state(policed, sandbox)
    result = policed.add(sandbox, args=ARGS)
    (record,) = records()
    assert [record[key] for key in ("namespace", "name", "uid", "ifname")] == ["shop", "web-0", "1-2", "eth0"]
    assert (record["network"], record["containerID"]) == ("net", sandbox.name)
    assert record["addresses"] == [address(result), address(result, 1)]
    assert record["hostVeth"] in {one["name"] for one in result["interfaces"]}
    assert record["mac"] == next(one["mac"] for one in result["interfaces"] if one.get("sandbox"))
    policed.check(sandbox, result)
    policed.delete(sandbox, args=ARGS)
    after = state(policed, sandbox)
    assert after[1:] == before[1:]


def test_container_without_kubernetes_is_only_guarded(policed, sandbox):
    """A container without a namespace in CNI_ARGS does not wait, even if the agent is strict."""
    write_namespaces(strict=True)
    result = policed.add(sandbox)
    assert [record["namespace"] for record in records()] == [""]
    policed.check(sandbox, result)
    policed.delete(sandbox)
    assert files() == []


@pytest.mark.parametrize(
    ("listing", "generation"),
    [
        pytest.param({"names": ["shop"], "generation": 7}, 7, id="listed"),
        pytest.param({"names": [], "strict": True}, 1, id="strict"),
        pytest.param({"names": [], "boot": "another"}, 0, id="file of another boot"),
        pytest.param(None, 0, id="no file"),
    ],
)
def test_add_waits_for_the_answer(simple, sandbox, listing, generation):
    """Rules wait and file-of-boot: ADD returns after the agent's answer, which is asked for with the record's name."""
    if listing is not None:
        write_namespaces(*listing.pop("names"), **listing)
    answered = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.5)
        assert records()[0]["addresses"] == ["10.22.0.2"]  # the agent finds the record
        answered.append(time.monotonic())
        return current(request)

    with agent(answer) as requests:
        simple.add(sandbox, args=ARGS)
    assert time.monotonic() > answered[0]
    assert requests == [{"record": files()[0], "generation": generation}]


@pytest.mark.parametrize("first", ["absent", "ended", "silent"])
def test_add_goes_on_as_soon_as_the_agent_listens(simple, sandbox, first):
    """ADD goes on, long before its limit of 20 s, with an agent that starts later, was killed, or ended silently."""
    write_namespaces("shop")
    if first == "ended":
        with agent(current):
            Path(table.GATE_SOCKET).rename(policy_node.DIRECTORY / "kept")
        (policy_node.DIRECTORY / "kept").rename(table.GATE_SOCKET)
    if first == "silent":
        with agent(lambda request: None) as requests:
            process = simple.start("ADD", sandbox, args=ARGS)
            wait_until(lambda: requests)
    else:
        process = simple.start("ADD", sandbox, args=ARGS)
        wait_until(records)
        time.sleep(0.5)
    assert process.poll() is None
    with agent(current):
        start = time.monotonic()
        finish(process).result()
    assert time.monotonic() - start < 5


def wait_until(condition: Callable[[], object]) -> None:
    """Waits until a condition is true."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_add_without_agent_fails_and_leaves_nothing(policed, sandbox):
    """Without the agent ADD fails after 20 s with code 11, names what it waits for, and is undone."""
    write_namespaces("shop")
    policed.add(sandbox)  # creates what ADD does not undo
    policed.delete(sandbox)
    before, start = state(policed, sandbox), time.monotonic()
    error = policed.run("ADD", sandbox, args=ARGS).error()
    assert 20 <= time.monotonic() - start < 23
    assert error["code"] == 11
    awaited = 'podwire-agent has not applied the network policies of namespace "shop" within 20 s'
    assert error["msg"] == f"{awaited}: it does not run"
    assert "start podwire-agent with --network-policy on this node" in error["details"]
    assert state(policed, sandbox) == before


def test_signal_ends_the_wait(simple, sandbox):
    """SIGTERM ends the wait for the agent, and ADD is undone."""
    write_namespaces("shop")
    simple.add(sandbox)
    simple.delete(sandbox)
    before = state(simple, sandbox)
    process = simple.start("ADD", sandbox, args=ARGS)
    wait_until(records)
    process.send_signal(signal.SIGTERM)
    assert finish(process).error()["code"] == 11
    assert state(simple, sandbox) == before


def test_failure_of_the_next_step_removes_record_and_guard(scripted_network, sandbox):
    """If the interface cannot be configured, ADD leaves neither record nor guard."""
    write_namespaces("other")
    keys = {"networkPolicy": True, "bridgeNetfilter": True}
    ips = [{"address": "10.22.0.5/16", "gateway": "10.22.0.1"}]
    good = scripted_network(ips, keys=keys)
    good.add(sandbox, args=ARGS)
    good.delete(sandbox)
    before = nft_rules(good.host)
    failing = scripted_network(ips, keys=keys, routes=[{"dst": "10.8.0.0/16", "gw": "192.0.2.7"}])
    assert "192.0.2.7" in failing.run("ADD", sandbox, args=ARGS).error()["details"]
    assert (files(), nft_rules(good.host)) == ([], before)
    assert len([line for line in before if "elements" in line]) == 0


def test_failure_of_the_guard_removes_the_record(simple, sandbox):
    """If another program's table has the guard's name, ADD and STATUS fail, and ADD leaves no record."""
    simple.host.run("nft", "add table bridge podwire_guard; add set bridge podwire_guard ports { type ipv4_addr; }")
    simple.run("ADD", sandbox, args=ARGS).error()
    assert files() == []
    error = simple.having(cniVersion="1.1.0").run("STATUS").error()
    assert error["code"] == 50
    assert "nft list table bridge podwire_guard" in error["msg"]


def load_agents_table(network: Network, pod_address: str) -> None:
    """Creates the agent's table with elements of a pod, and of another one."""
    text = AGENTS_TABLE.replace("ADDRESS", pod_address)
    with network.host.entered():
        subprocess.run(["nft", "-f", "-"], input=text.encode(), check=True)


def listed(host: Namespace, address_: str) -> bool:
    """Returns whether an address is in the agent's table."""
    return address_ in host.run("nft", "list", "table", "inet", "podwire_policy")


def test_del_empties_the_filter_before_the_address_is_released(scripted_network, sandbox, tmp_path):
    """Rule filter-first: when IPAM releases the address, it is out of the filter, and other pods' are not."""
    seen = tmp_path / "seen"
    body = f'[ "$CNI_COMMAND" != DEL ] || nft list table inet podwire_policy > {seen}'
    network = scripted_network(
        [{"address": "10.22.0.5/16"}], body=body, keys={"networkPolicy": True, "bridgeNetfilter": True}
    )
    write_namespaces("other")
    network.add(sandbox, args=ARGS)
    load_agents_table(network, "10.22.0.5")
    network.delete(sandbox)
    assert "10.22.0.5" not in seen.read_text()
    assert seen.read_text().count("10.9.9.9") == 3
    assert files() == []


def test_address_stays_reserved_if_the_filter_cannot_be_changed(simple, sandbox):
    """Rule lock: DEL waits for the agent's lock on the record, and keeps the address while it does not get it."""
    write_namespaces("other")
    result = simple.add(sandbox, args=ARGS)
    load_agents_table(simple, address(result))
    with (PODS / files()[0]).open() as record:
        fcntl.flock(record, fcntl.LOCK_SH)  # as the agent does while its transaction runs
        process = simple.start("DEL", sandbox)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        assert list(simple.leases()) == [address(result)]
        assert listed(simple.host, address(result))
    finish(process).assert_silent()
    assert (simple.leases(), files()) == ({}, [])
    assert not listed(simple.host, address(result))


def test_second_del_does_not_remove_the_next_pods_elements(simple, sandbox):
    """A DEL that has waited for the lock of a deleted record changes nothing."""
    write_namespaces("other")
    result = simple.add(sandbox, args=ARGS)
    path = PODS / files()[0]
    with path.open() as record:
        fcntl.flock(record, fcntl.LOCK_SH)
        process = simple.start("DEL", sandbox)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        path.unlink()  # as another DEL
        load_agents_table(simple, address(result))  # of the next pod with the address
    finish(process).assert_silent()
    assert listed(simple.host, address(result))


def test_del_without_the_key(policed, sandbox):
    """DEL removes record and elements also if networkPolicy has been removed from the configuration."""
    write_namespaces("other")
    policed.add(sandbox, args=ARGS)
    policed.having(networkPolicy=None).delete(sandbox)
    assert files() == []
    assert not [line for line in nft_rules(policed.host) if "elements" in line]


def test_gc_removes_stale_pods_of_its_network(policed, new_sandbox):
    """GC removes records and elements of attachments that are not valid, as DEL does, and no others."""
    write_namespaces("other")
    policed = policed.having(cniVersion="1.1.0")
    valid, stale, other = new_sandbox(), new_sandbox(), new_sandbox()
    result = policed.add(valid, args=ARGS)
    stale_address = address(policed.add(stale, args=ARGS))
    ipam = {**policed.config["ipam"], "ranges": [[{"subnet": "10.77.0.0/24"}]]}
    policed.having(name="other", bridge="cni7", ipam=ipam).add(other, args=ARGS)
    load_agents_table(policed, stale_address)
    policed.gc(valid, **{"podwire/listed-at": 1})  # younger than the list
    assert len(files()) == 3
    policed.gc(valid)
    assert sorted(record["containerID"] for record in records()) == sorted([valid.name, other.name])
    assert not listed(policed.host, stale_address)
    assert list(policed.leases().values()).count(stale.name) == 0
    policed.check(valid, result)


def test_damaged_record_does_not_stop_del(simple, sandbox):
    """DEL deletes a damaged record and reports it."""
    write_namespaces("other")
    simple.add(sandbox, args=ARGS)
    (PODS / files()[0]).write_text("[")
    assert "is damaged, its addresses are unknown" in simple.delete(sandbox)
    assert files() == []


def test_check_reports_a_missing_record(policed, sandbox):
    """CHECK fails without the record, by which the agent knows the pod."""
    write_namespaces("other")
    result = policed.add(sandbox, args=ARGS)
    (PODS / files()[0]).unlink()
    assert "the record of the pod for podwire-agent is missing" in policed.check_error(sandbox, result)


def test_repair_restores_record_and_guard(policed, sandbox, tmp_path):
    """After a flush of nftables and the loss of the records, `podwire repair` restores both, without the agent."""
    write_namespaces("default")
    config = {key: value for key, value in policed.config.items() if key not in ("cniVersion", "name")}
    node = Node(policed.host, NetworkList("net", "1.0.0", (config,)), tmp_path / "cni")
    result = node.add(sandbox)
    (before,) = records()
    node.flush()
    (PODS / files()[0]).unlink()
    assert node.repair() == {sandbox.name: "repaired"}
    node.check(sandbox, result)
    names = {"namespace": "default", "name": sandbox.name}  # of the runtime's cache
    assert records() == [{**before, **names}]
    assert node.repair() == {sandbox.name: "fine"}


@pytest.mark.parametrize(("keys", "msg"), [({"vlanTrunk": [{"id": 5}]}, "vlanTrunk"), ({"ipam": None}, "ipam")])
def test_impossible_configurations(simple, sandbox, keys, msg):
    """Configurations in which policies could not hold are refused with code 7."""
    error = simple.having(**keys).run("ADD", sandbox).error()
    assert error["code"] == 7
    assert msg in error["msg"]


@pytest.mark.parametrize("setting", ["iptables", "ip6tables"])
def test_bridge_needs_bridge_netfilter(network, sandbox, setting):
    """ADD and STATUS of bridge refuse a host on which frames between pods bypass policies, unless they may set it."""
    for name in ("iptables", "ip6tables"):
        network.host.set_sysctl(f"net/bridge/bridge-nf-call-{name}", "1")
    policed = network.having(networkPolicy=True, cniVersion="1.1.0")
    policed.run("STATUS").assert_silent()
    network.host.set_sysctl(f"net/bridge/bridge-nf-call-{setting}", "0")
    for command in ("ADD", "STATUS"):
        error = policed.run(command, sandbox).error()
        assert (error["code"], f"bridge-nf-call-{setting}=1" in error["msg"]) == (50, True)
    assert policed.having(bridgeNetfilter=False).run("ADD", sandbox).error()["code"] == 7
    policed.having(bridgeNetfilter=True).add(sandbox)
    policed.run("STATUS").assert_silent()
