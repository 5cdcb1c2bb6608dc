"""Checks the state after a storm: it must equal that of a host on which the same attachments were added sequentially.

One rule: whole states are compared, of two hosts and of before and after, as sets of lines: each attachment has its own
rules, so their order is irrelevant.

    python -m tests.support.storm_check '{"backend": "nftables", "seconds": 10, ...}'   # prints a report, a JSON object

It is a separate program, because it moves into new namespaces and stays there.
"""

import json
import re
import sys
import time
from collections import Counter
from pathlib import Path

from ipam.host_local.index import Index
from ipam.host_local.store import ReservationStore
from tests.support import (
    bandwidth_network,
    namespaces,
    netstate,
    pod_interfaces,
    private_host,
    publishing,
    tcp,
    xtables,
)
from tests.support.attaching import reaches
from tests.support.namespaces import Namespace
from tests.support.publishing import CLIENT, NODE
from tests.support.storm import Storm
from tests.support.storm_plan import RESULTS, Container, Plan, containers

_CLEANUP_TIMEOUT_S = 60.0  # the kernel deletes namespaces and their interfaces in the background
_LINES_MAX = 30
_PODS_TESTED = 5  # pods that exchange packets
_HOST_LINK = re.compile(r"\bpwha[0-9]+\b")  # its name contains the ifindex of its master
_MAC = re.compile(r"\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b")

Lines = Counter[str]


def run_and_check(storm: Storm, host: Namespace, external: Namespace) -> None:
    """Runs `storm` on `host`, the current namespace, and checks the state that it leaves."""
    with namespaces.temporary_host() as second:
        if storm.plan.interface in pod_interfaces.KEYS:
            for namespace in (host, second):
                pod_interfaces.create_objects(namespace, len(storm.containers))
        sequential = Storm(storm.plan, storm.store.with_name("sequential"), containers(storm.plan))
        if storm.plan.reference:  # its parallel first ADDs create shared objects twice
            warm_up(storm)
        storm.run()
        storm.check_all()
        with second.entered():
            warm_up(sequential)
            before = state_lines(second, [], storm.plan.tools)
            for each in storm.running():
                sequential.add_like(each)
        storm.add_problems(*sequential.report.problems)
        _compare(storm, "with the running pods", host, state_lines(second, sequential.running(), storm.plan.tools))
        compare_store(storm)
        if storm.plan.interface == "macvlan":
            _exchange_on_master(storm, host)
        elif storm.plan.interface not in pod_interfaces.KEYS:
            _exchange(storm, external)
        storm.delete_all()
        _compare(storm, "after the last DEL", host, before)
        compare_store(storm)


def warm_up(storm: Storm) -> None:
    """Adds and deletes one attachment with each set of plugins, which creates the shared objects."""
    first, *_ = storm.containers
    for by_reference in (False, True) if storm.plan.reference else (False,):
        first.by_reference, first.result = by_reference, {"ips": [{"address": "10.22.0.9/24"}]}
        storm.add_like(first)
        storm.delete_all(by_reference=by_reference)


def state_lines(host: Namespace, running: list[Container], tools: str = "") -> Lines:
    """Returns the state of a host as lines, with host veths named after their containers.

    `tools` is the directory of iptables' programs, by default the machine's.
    """
    state = bandwidth_network.state(host)
    lines = [f"link {json.dumps(link | {'name': name})}" for name, link in state.pop("links").items()]
    lines += [f"{kind} {json.dumps(item)}" for kind, value in state.items() for item in _items(value)]
    lines += [f"nft {line}" for line in netstate.nft_rules(host)]
    for tool in xtables.TOOLS:
        lines += [f"{tool} {line}" for line in netstate.iptables_rules(host, f"{tools}/{tool}" if tools else tool)]
    # With iptables-legacy, whose lock is not held between reading and changing, the last two DELs may each leave this
    # empty chain to the other one; the next DEL deletes it. The rules of iptables-nft are in nft's lines, too.
    if not any("-A CNI-FORWARD-OWNERS " in line for line in lines):
        lines = [line for line in lines if not line.endswith("tables :CNI-FORWARD-OWNERS -")]
    names = {each.host_veth: f"host veth of {each.name}" for each in running if each.result and each.host_veth}
    veth = re.compile(r"\bveth[0-9a-f]{8}\b")
    named = (veth.sub(lambda match: names.get(match[0], match[0]), line) for line in lines)
    return Counter(_HOST_LINK.sub("host link", _MAC.sub("MAC", line)) for line in named if "uplink" not in line)


def compare_store(storm: Storm) -> None:
    """Checks that reservations, index (if complete) and tuning's backups are those of the running containers."""
    expected = {f"{each.name}\r\neth0".encode(): [each.address] for each in storm.running()}
    store = ReservationStore(str(storm.store), "storm")
    owners = store.list_owners()
    if owners != expected:
        storm.add_problems(
            f"reservations: surplus {owners.keys() - expected.keys()}, missing {expected.keys() - owners.keys()}"
        )
    index = Index(str(storm.store), "storm", store.directory)
    if index.complete and {owner: index.find(owner) for owner in expected} != expected:
        storm.add_problems("the index differs from the reservations")
    index.close()
    devices = {f"{each.name}:eth0.json" for each in storm.running()} if storm.plan.interface == "host-device" else set()
    if (files := set(pod_interfaces.device_files(storm.store))) != devices:
        storm.add_problems(f"devices: surplus {files - devices}, missing {devices - files}")
    other_files = {path.name for path in Path(store.directory).iterdir()} - {each.address for each in storm.running()}
    if other_files != {"lock", "last_reserved_ip.0"}:
        storm.add_problems(f"the store also contains {other_files}")
    names = {f"{each.name}_eth0.json" for each in storm.running()}
    if (backups := {path.name for path in storm.backups.iterdir()}) != names:
        storm.add_problems(f"backups: surplus {backups - names}, missing {names - backups}")
    notes = {path.name for path in storm.backups.with_name(f"{storm.backups.name}.podwire").iterdir()}
    if notes != names and not storm.plan.reference:  # the reference plugins create none, and leave podwire's
        storm.add_problems(f"notes: surplus {notes - names}, missing {names - notes}")


def _items(value: object) -> list[object]:
    if isinstance(value, dict):
        return [(key, item) for key, items in value.items() for item in items]
    return list(value) if isinstance(value, list) else [value]


def _compare(storm: Storm, when: str, host: Namespace, expected: Lines) -> None:
    deadline = time.monotonic() + _CLEANUP_TIMEOUT_S
    while (lines := state_lines(host, storm.running(), storm.plan.tools)) != expected and time.monotonic() < deadline:
        time.sleep(0.2)
    for what, difference in (("surplus", lines - expected), ("missing", expected - lines)):
        storm.add_problems(*(f"{when}, {what}: {line}" for line in sorted(difference)[:_LINES_MAX]))


def _exchange(storm: Storm, external: Namespace) -> None:
    """Connects to pods through their host ports, and from pods to each other and to an external host."""
    tested = storm.running()[:_PODS_TESTED]
    with tcp.serving(external, CLIENT):
        for container, other in zip(tested, tested[1:] + tested[:1], strict=True):
            with tcp.serving(container.pod, container.address):
                if tcp.source_address(external, NODE, container.host_port) != CLIENT:
                    storm.add_problems(f"{container.name} cannot be reached through port {container.host_port}")
            if tcp.source_address(container.pod, CLIENT) != NODE:
                storm.add_problems(f"{container.name} cannot reach the external host")
            if not reaches(container.pod, other.address):
                storm.add_problems(f"{container.name} cannot reach {other.name}")


def _exchange_on_master(storm: Storm, host: Namespace) -> None:
    """Sends packets from pods to each other and to the node, and from the node to pods."""
    tested = storm.running()[:_PODS_TESTED]
    for container, other in zip(tested, tested[1:] + tested[:1], strict=True):
        if not reaches(container.pod, other.address):
            storm.add_problems(f"{container.name} cannot reach {other.name}")
        if not reaches(container.pod, pod_interfaces.NODE[0]):
            storm.add_problems(f"{container.name} cannot reach the node")
        if not reaches(host, container.address):
            storm.add_problems(f"the node cannot reach {container.name}")


def main(text: str) -> None:
    """Runs a plan and prints the report as JSON."""
    plan = Plan(**json.loads(text))
    host = private_host.enter("/var/lib/cni")
    RESULTS.mkdir(parents=True, exist_ok=True)
    external = namespaces.create("outside")
    publishing.connect(host, external)
    storm = Storm(plan, Path(plan.store) / "leases", containers(plan))
    run_and_check(storm, host, external)
    print(json.dumps(vars(storm.report)))


if __name__ == "__main__":
    main(sys.argv[1])
