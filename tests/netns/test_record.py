"""Verbs record their changes, and planned verbs change nothing."""

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cni import args as cni_args
from cni import conf as cni_conf
from cni import skel
from kernel import link
from kernel.errors import KernelError
from kernel.netfilter import nft
from kernel.rtnl import Socket
from podwire.main import PLUGINS
from process import record
from tests.support import xtables
from tests.support.chained import CHAIN, Chain, differences
from tests.support.namespaces import Namespace
from tests.support.processes import in_a_child

BACKENDS = [
    pytest.param("iptables", marks=pytest.mark.needs("iptables_nft_nat", "ifb", "tbf")),
    pytest.param("nftables", marks=pytest.mark.needs("nft_nat", "nft_inet", "ifb", "tbf")),
]
PLANNED, EXECUTED = "planned", "made"
NO_VALID_ATTACHMENTS: dict[str, Any] = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": []}

# Changes that each plugin's record must have, as patterns for both backends.
ADDED = {
    "bridge": [
        r'^create bridge "cni0"',
        r'^make veth pair "veth[0-9a-f]{8}" - "eth0"$',
        r"^reserve 10\.22\.0\.2 of \S+ eth0$",
        r'^add IP addr 10\.22\.0\.2/16 to "eth0"$',
        r"^add route '0\.0\.0\.0/0 via 10\.22\.0\.1 dev eth0 ",
        r"^iptables -t nat -A CNI-\S+ .*MASQUERADE$|"
        r'^add a rule to chain cni_plugins_masquerade masq_checks ".*net: net',
        r"^sysctl -w net/ipv4/ip_forward=1$",
    ],
    "portmap": [r"^iptables -t nat -A CNI-DN-\S+ .*8080|^add a rule to chain cni_hostport hostports "],
    "bandwidth": [r'^create ifb "bwp', r'^create qdisc tbf of "veth', r'^add filter of "veth'],
    "firewall": [r"^iptables -t filter -A CNI-FORWARD |^add to set podwire_firewall \S+ \{ 10\.22\.0\.2"],
    "tuning": [
        r'^set "eth0" .*to MTU 1400',
        r"^sysctl -w net/ipv4/conf/eth0/arp_filter=1$",
        r"^save the attributes of eth0",
    ],
}
DELETED = {
    "bridge": [
        r'^delete "veth[0-9a-f]{8}", the other end of "eth0"$',
        r"^release 10\.22\.0\.2 of \S+ eth0$",
        r"^delete chain nat CNI-|^delete rule \d+ of chain cni_plugins_masquerade masq_checks \".*net: net",
    ],
    "portmap": [r"^delete chain nat CNI-DN-|^delete rule \d+ of chain cni_hostport hostports "],
    "bandwidth": [r'^delete ingress qdisc .*of "veth', r'^delete "bwp'],
    "firewall": [
        r"^delete rule \d+ of chain filter CNI-FORWARD .*10\.22\.0\.2|^delete from set podwire_firewall \S+ \{ 10\.22"
    ],
    "tuning": [r'^set "eth0" .*to MTU 1500', r"^remove .*_eth0\.json$"],
}
COLLECTED = {
    "bridge": DELETED["bridge"][1:],
    "portmap": DELETED["portmap"],
    "bandwidth": DELETED["bandwidth"][1:],
    "firewall": DELETED["firewall"],
    "tuning": DELETED["tuning"][1:],
}


def run_recorded(
    chain: Chain,
    mode: str,
    plugin: str,
    command: str,
    pod: Namespace,
    prev_result: object = None,
    *,
    path: str = "",
    env: Mapping[str, str] | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """Runs a verb from the sources, in a child process; returns its `changes`, `steps` and `result`.

    Delegates run inside the same process, as in the executable. `mode` is PLANNED (a dry run) or EXECUTED. `path` has
    directories of foreign delegates, `env` further variables.
    """
    names = {"CNI_COMMAND": command, "CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0"}
    names |= {"CNI_PATH": path, **(env or {})}
    config = json.dumps(chain.config(plugin, prev_result, **keys)).encode()
    with chain.host.entered(), tempfile.NamedTemporaryFile("r") as file:
        work = partial(run_verb, mode, plugin, names, config, Path(file.name))
        assert in_a_child(work), "the verb failed: see stderr"
        record_of_verb: dict[str, Any] = json.load(file)
    return record_of_verb


def run_verb(mode: str, name: str, env: Mapping[str, str], config: bytes, output: Path) -> bool:
    os.environ.update(env)  # only the child's: the search for iptables' programs uses it
    with tempfile.TemporaryDirectory() as directory:
        for other in PLUGINS:  # this program's file, by which podwire recognises its own delegates
            Path(directory, other).symlink_to(os.readlink("/proc/self/exe"))
        args = cni_args.from_env({**os.environ, "CNI_PATH": f"{env['CNI_PATH']}:{directory}"})
        with record.recording(dry_run=mode == PLANNED) as recorded:
            conf = cni_conf.parse(config)
            result = skel.run_verb(PLUGINS[name], replace(args, stdin=config, delegates=PLUGINS), conf)
    steps = [item.what for item in recorded.steps]
    result_json = result.to_json(conf.cni_version) if result else None
    output.write_text(json.dumps({"changes": recorded.changes, "steps": steps, "result": result_json}))
    return True


@pytest.fixture(params=BACKENDS)
def chain(bin_dir: Path, host: Namespace, store: Path, request: pytest.FixtureRequest) -> Chain:
    """A list of all plugins, for each backend."""
    return Chain(host, store, request.param)


def test_add_records_its_changes(chain: Chain, sandbox: Namespace):
    """A recorded ADD has the links, addresses, rules and settings that it created, and its steps in their order."""
    result, steps = None, {}
    for plugin in CHAIN:
        recorded = run_recorded(chain, EXECUTED, plugin, "ADD", sandbox, result)
        result, steps[plugin] = recorded["result"], recorded["steps"]
        assert_recorded(ADDED[plugin], recorded["changes"])
    chain.run("bridge", "CHECK", sandbox, result).assert_silent()
    expected = ["open the network namespace", "find or create the bridge", "create the veth pair", "host-local ADD"]
    expected += ["add addresses and routes", f"rules by {chain.backend}"]
    assert [step for step in steps["bridge"] if step in expected] == expected
    assert "open the network namespace" in steps[CHAIN[-1]]


def test_planned_del_changes_nothing(chain: Chain, sandbox: Namespace):
    """A planned DEL leaves kernel, stores and backups unchanged, and lists what DEL changes; a second DEL has none."""
    result = chain.add(sandbox, *CHAIN)
    before = read_state(chain, sandbox)
    for plugin in reversed(CHAIN):
        recorded = run_recorded(chain, PLANNED, plugin, "DEL", sandbox, result)
        assert_recorded(DELETED[plugin], recorded["changes"])
        assert not [step for step in recorded["steps"] if step.startswith(("delete", "run"))]  # it waits for nothing
        assert differences(before, read_state(chain, sandbox)) == []
    for plugin in reversed(CHAIN):
        planned = run_recorded(chain, PLANNED, plugin, "DEL", sandbox, result)["changes"]
        assert run_recorded(chain, EXECUTED, plugin, "DEL", sandbox, result)["changes"] == planned
    for plugin in reversed(CHAIN):
        assert run_recorded(chain, EXECUTED, plugin, "DEL", sandbox, result)["changes"] == []


def test_planned_gc_changes_nothing(chain: Chain, sandbox: Namespace):
    """A planned GC of each plugin records the removal of an invalid attachment's objects, and changes nothing."""
    chain.add(sandbox, *CHAIN)
    before = read_state(chain, sandbox)
    for plugin in CHAIN:
        recorded = run_recorded(chain, PLANNED, plugin, "GC", sandbox, **NO_VALID_ATTACHMENTS)
        assert_recorded(COLLECTED[plugin], recorded["changes"])
        assert differences(before, read_state(chain, sandbox)) == []


def test_existing_objects_are_no_change(chain: Chain, new_sandbox: Callable[[], Namespace]):
    """A second ADD does not record existing bridge, address and forwarding, and STATUS records nothing."""
    chain.add(new_sandbox(), "bridge")
    second = new_sandbox()
    changes = run_recorded(chain, EXECUTED, "bridge", "ADD", second)["changes"]
    assert not [
        change for change in changes if re.search(r"create bridge|10\.22\.0\.1/16|ip_forward|add table", change)
    ]
    for plugin in CHAIN:
        assert run_recorded(chain, EXECUTED, plugin, "STATUS", second, cniVersion="1.1.0")["changes"] == []


def test_refused_requests_are_no_change(host: Namespace):
    """Refused requests of a batch and a refused transaction are not recorded, whether or not they raise."""
    table = nft.Table(nft.INET, "t")
    with host.entered(), record.recording() as recorded, Socket() as socket, nft.open_socket() as netfilter:
        (lo,) = link.get(socket, link.by_name_request("lo"))
        assert lo is not None
        missing_link = lo._replace(index=1 << 20, name="gone")
        socket.change(link.delete_request(missing_link), link.set_request(lo, mtu=65000))
        with pytest.raises(KernelError):
            nft.change(netfilter, nft.table_request(table), nft.delete_chain_request(nft.Chain(table, "absent")))
    assert recorded.changes == ['set "lo" to MTU 65000']


@pytest.mark.parametrize("other", ["ptp", "loopback", "host-local", "static"])
def test_other_plugins(chain: Chain, sandbox: Namespace, other: str):
    """For the other plugins planned DEL and GC change nothing, and a real DEL makes the planned changes."""
    result = chain.add(sandbox, other)
    before = read_state(chain, sandbox)
    planned = run_recorded(chain, PLANNED, other, "DEL", sandbox, result)["changes"]
    run_recorded(chain, PLANNED, other, "GC", sandbox, **NO_VALID_ATTACHMENTS)
    assert differences(before, read_state(chain, sandbox)) == []
    assert run_recorded(chain, EXECUTED, other, "DEL", sandbox, result)["changes"] == planned
    assert bool(planned) == (other != "static")


@pytest.mark.needs("iptables_legacy_nat")
def test_planned_deletion_with_iptables_legacy(
    bin_dir: Path, host: Namespace, store: Path, sandbox: Namespace, tmp_path: Path
):
    """A planned deletion of iptables-legacy rules is recorded as commands, and keeps the rules."""
    chain = Chain(host, store, "iptables")
    env = xtables.path(xtables.variant(tmp_path / "legacy", "legacy"))
    added = run_recorded(chain, EXECUTED, "bridge", "ADD", sandbox, env=env)
    before = xtables.saved(chain.host, tmp_path / "legacy")
    planned = run_recorded(chain, PLANNED, "bridge", "DEL", sandbox, added["result"], env=env)["changes"]
    assert xtables.saved(chain.host, tmp_path / "legacy") == before
    assert any(change.startswith("iptables -t nat -D POSTROUTING ") for change in planned)
    assert run_recorded(chain, EXECUTED, "bridge", "DEL", sandbox, added["result"], env=env)["changes"] == planned


def test_planned_verbs_create_no_store(chain: Chain, sandbox: Namespace):
    """A planned DEL and GC on a host without a store create neither store nor lock."""
    for verb, keys in (("DEL", {}), ("GC", NO_VALID_ATTACHMENTS)):
        for plugin in CHAIN:
            run_recorded(chain, PLANNED, plugin, verb, sandbox, **keys)
    assert not chain.store.exists() or list(chain.store.iterdir()) == []


def test_planned_del_of_a_foreign_delegate(chain: Chain, sandbox: Namespace, tmp_path: Path):
    """A planned DEL does not run another vendor's IPAM plugin, and records the omitted call."""
    ran = tmp_path / "ran"
    program = tmp_path / "foreign"
    program.write_text(f"#!/bin/sh\necho $CNI_COMMAND >> {ran}\n")
    program.chmod(0o755)
    recorded = run_recorded(chain, PLANNED, "bridge", "DEL", sandbox, ipam={"type": "foreign"}, path=str(tmp_path))
    assert (recorded["changes"], ran.exists()) == ([f"run DEL of foreign ({program})"], False)
    run_recorded(chain, EXECUTED, "bridge", "DEL", sandbox, ipam={"type": "foreign"}, path=str(tmp_path))
    assert ran.read_text() == "DEL\n"


def assert_recorded(patterns: list[str], changes: list[str]) -> None:
    """Fails with the patterns that no change matches."""
    unmatched = [pattern for pattern in patterns if not any(re.search(pattern, change) for change in changes)]
    assert not unmatched, "\n".join(["missing:", *unmatched, "in:", *changes])


def read_state(chain: Chain, sandbox: Namespace) -> dict[str, Any]:
    """Returns the state of the node, with handles of rules, and contents and times of all files."""
    files = {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_ino, path.read_bytes() if path.is_file() else b"")
        for path in chain.store.parent.rglob("*")
    }
    rules = chain.host.run("nft", "-a", "-s", "list", "ruleset").splitlines()
    return {"whole": chain.everything(sandbox), "files": files, "rules": rules}
