"""What must be true when a storm is over: the state is that of the same attachments made one after the other.

One rule: whole states are compared, those of two hosts and of before and after, by their lines: order says nothing
where each attachment has rules of its own.

    python -m tests.support.storm_check '{"backend": "nftables", "seconds": 10, ...}'   # prints a report, a JSON object

It is a program of its own because it moves into private namespaces and stays there: the machine never sees a thing.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from pathlib import Path

from ipam.host_local.index import Index
from ipam.host_local.store import Store
from tests.support import bandwidth_network, namespaces, netstate, private_host, publishing, tcp, xtables
from tests.support.attaching import reaches
from tests.support.namespaces import Namespace
from tests.support.publishing import NODE, OUTSIDE
from tests.support.storm import RESULTS, Container, Plan, Storm, containers

_SETTLED_S = 10.0  # namespaces go in their own time, and interfaces with them
_SHOWN = 30
_TRIED = 5  # pods with which packets are exchanged
_MAC = re.compile(r"\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b")

Picture = Counter[str]


def judge(storm: Storm, host: Namespace, outside: Namespace) -> None:
    """Runs `storm` on `host`, which is the current namespace, and looks at what it left."""
    with namespaces.temporary_host() as second:
        calm = Storm(storm.plan, storm.store.with_name("calm"), containers(storm.plan))
        if storm.plan.reference:  # whose first ADDs, at the same time, make what is shared twice
            _warm_up(storm)
        storm.run()
        storm.check_all()
        with second.entered():
            _warm_up(calm)
            before = picture(second, [], storm.plan.tools)
            for each in storm.living():
                calm.add_like(each)
        storm.problem(*calm.report.problems)
        _compare(storm, "among the living", host, picture(second, calm.living(), storm.plan.tools))
        compare_store(storm)
        _exchange(storm, outside)
        storm.delete_all()
        _compare(storm, "after all", host, before)
        compare_store(storm)


def _warm_up(storm: Storm) -> None:
    """Makes, and takes away, an attachment by each: what the first one makes for all is not what it leaves."""
    first, *_ = storm.containers
    for by_reference in (False, True) if storm.plan.reference else (False,):
        first.by_reference, first.result = by_reference, {"ips": [{"address": "10.22.0.9/24"}]}
        storm.add_like(first)
        storm.delete_all(by_reference=by_reference)


def picture(host: Namespace, living: list[Container], tools: str = "") -> Picture:
    """Returns the state of a host, line by line, host ends named after their containers.

    `tools` is where iptables' programs are, the machine's unless given.
    """
    whole = bandwidth_network.state(host)
    lines = [f"link {json.dumps(link | {'name': name})}" for name, link in whole.pop("links").items()]
    lines += [f"{kind} {json.dumps(item)}" for kind, value in whole.items() for item in _items(value)]
    lines += [f"nft {line}" for line in netstate.nft_rules(host)]
    for tool in xtables.TOOLS:
        lines += [f"{tool} {line}" for line in netstate.iptables_rules(host, f"{tools}/{tool}" if tools else tool)]
    # Of two last ones with iptables-legacy, whose lock is not held from look to change, each leaves this to the other,
    # and the next DEL finds it; what iptables-nft has is among nft's lines, too.
    if not any("-A CNI-FORWARD-OWNERS " in line for line in lines):
        lines = [line for line in lines if not line.endswith("tables :CNI-FORWARD-OWNERS -")]
    names = {each.host_veth: f"host end of {each.name}" for each in living if each.result}
    veth = re.compile(r"\bveth[0-9a-f]{8}\b")
    named = (veth.sub(lambda match: names.get(match[0], match[0]), line) for line in lines)
    return Counter(_MAC.sub("MAC", line) for line in named if "uplink" not in line)


def compare_store(storm: Storm) -> None:
    """Demands that reservations, index (where it is proven) and backups are those of the living."""
    expected = {f"{each.name}\r\neth0".encode(): [each.address] for each in storm.living()}
    store = Store(str(storm.store), "storm")
    found = store.list_owners()
    if found != expected:
        storm.problem(
            f"reservations: surplus {found.keys() - expected.keys()}, missing {expected.keys() - found.keys()}"
        )
    index = Index(str(storm.store), "storm", store.directory)
    if index.complete and {owner: index.find(owner) for owner in expected} != expected:
        storm.problem("the index says otherwise than the reservations")
    index.close()
    left = {path.name for path in Path(store.directory).iterdir()} - {each.address for each in storm.living()}
    if left != {"lock", "last_reserved_ip.0"}:
        storm.problem(f"in the store is also {left}")
    wanted = {f"{each.name}_eth0.json" for each in storm.living()}
    if (backups := {path.name for path in storm.backups.iterdir()}) != wanted:
        storm.problem(f"backups: surplus {backups - wanted}, missing {wanted - backups}")
    notes = {path.name for path in storm.backups.with_name(f"{storm.backups.name}.podwire").iterdir()}
    if notes != wanted and not storm.plan.reference:  # which makes none, and leaves ours
        storm.problem(f"notes: surplus {notes - wanted}, missing {wanted - notes}")


def _items(value: object) -> list[object]:
    if isinstance(value, dict):
        return [(key, item) for key, items in value.items() for item in items]
    return list(value) if isinstance(value, list) else [value]


def _compare(storm: Storm, when: str, host: Namespace, expected: Picture) -> None:
    deadline = time.monotonic() + _SETTLED_S
    while (found := picture(host, storm.living(), storm.plan.tools)) != expected and time.monotonic() < deadline:
        time.sleep(0.2)
    for what, difference in (("surplus", found - expected), ("missing", expected - found)):
        storm.problem(*(f"{when}, {what}: {line}" for line in sorted(difference)[:_SHOWN]))


def _exchange(storm: Storm, outside: Namespace) -> None:
    """Calls pods through their host ports, and has pods call each other and the world outside."""
    tried = storm.living()[:_TRIED]
    with tcp.serving(outside, OUTSIDE):
        for own, other in zip(tried, tried[1:] + tried[:1], strict=True):
            with tcp.serving(own.pod, own.address):
                if tcp.source_address(outside, NODE, own.host_port) != OUTSIDE:
                    storm.problem(f"{own.name} is not reached through port {own.host_port}")
            if tcp.source_address(own.pod, OUTSIDE) != NODE:
                storm.problem(f"{own.name} does not reach the world")
            if not reaches(own.pod, other.address):
                storm.problem(f"{own.name} does not reach {other.name}")


def main(text: str) -> None:
    """Runs a plan and prints the report."""
    plan = Plan(**json.loads(text))
    host = private_host.enter("/var/lib/cni")
    RESULTS.mkdir(parents=True, exist_ok=True)
    outside = namespaces.create("outside")
    publishing.connect(host, outside)
    storm = Storm(plan, Path(plan.store) / "leases", containers(plan))
    judge(storm, host, outside)
    print(json.dumps(vars(storm.report)))


if __name__ == "__main__":
    main(sys.argv[1])
