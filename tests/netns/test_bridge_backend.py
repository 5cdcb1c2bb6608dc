"""Which backend masquerades, and that rules go whichever made them; faults while they go."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from tests.netns.conftest import IPV4
from tests.support import binaries
from tests.support.invocation import Outcome, environment
from tests.support.netstate import iptables_rules, links, nft_rules

pytestmark = pytest.mark.needs("nft_nat", "iptables_nft_nat")

BACKENDS = ("iptables", "nftables")
# In a mount namespace of its own the plugin finds a file in the program's place that it cannot execute.
WITHOUT_IPTABLES = 'mount --bind /dev/null /usr/sbin/xtables-nft-multi && exec "$0"'


@pytest.fixture
def masqueraded(dual_network):
    """A masqueraded network that names no backend."""
    return dual_network.having(ipMasq=True)


def made_by(network):
    """Returns the backends that have rules of this host's pods."""
    found = {"iptables": [rule for rule in iptables_rules(network.host) if "CNI-" in rule]}
    found["nftables"] = [rule for rule in nft_rules(network.host) if "net: net, if: eth0" in rule]
    return {backend for backend, rules in found.items() if rules}


def run_without_iptables(network, command, pod, **keys):
    """Runs a verb where there is no iptables to be found."""
    names = {"CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0"}
    program = str(binaries.directory() / "bridge")
    with network.host.entered():
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", WITHOUT_IPTABLES, program],
            input=json.dumps({**network.config, **keys}).encode(),
            env=environment(command, CNI_PATH=str(binaries.directory()), **names),
            capture_output=True,
            timeout=60,
            check=False,
        )
    return Outcome(done.returncode, done.stdout, done.stderr.decode())


def test_iptables_is_taken_where_it_works(masqueraded, sandbox):
    """Without ipMasqBackend the rules are made by iptables."""
    masqueraded.check(sandbox, masqueraded.add(sandbox))
    assert made_by(masqueraded) == {"iptables"}


def test_nftables_is_taken_where_iptables_is_missing(masqueraded, sandbox):
    """Without ipMasqBackend and without iptables the rules are made by nftables; CHECK and DEL go the same way."""
    result = run_without_iptables(masqueraded, "ADD", sandbox).result()
    assert made_by(masqueraded) == {"nftables"}
    run_without_iptables(masqueraded, "CHECK", sandbox, prevResult=result).assert_silent()
    run_without_iptables(masqueraded, "DEL", sandbox, prevResult=result).assert_silent()
    assert made_by(masqueraded) == set()


def test_check_accepts_either_where_none_is_named(masqueraded, sandbox):
    """After iptables was installed on a node, CHECK of pods that nftables masquerades still passes."""
    result = masqueraded.having(ipMasqBackend="nftables").add(sandbox)
    masqueraded.check(sandbox, result)
    masqueraded.host.run("nft", "flush", "chain", "inet", "cni_plugins_masquerade", "masq_checks")
    error = masqueraded.run("CHECK", sandbox, prev_result=result).error()
    assert "masquerade: " in error["msg"]


def test_iptables_that_was_asked_for_and_is_missing(masqueraded, sandbox):
    """With ipMasqBackend "iptables" and no iptables ADD fails, says where it looked, and leaves nothing."""
    error = run_without_iptables(masqueraded.having(ipMasqBackend="iptables"), "ADD", sandbox).error()
    assert error["msg"] == "iptables-restore is not installed"
    assert "/usr/sbin" in error["details"]
    assert (masqueraded.leases(), set(links(masqueraded.host)), set(links(sandbox))) == ({}, {"lo"}, {"lo"})
    status = masqueraded.having(ipMasqBackend="iptables", cniVersion="1.1.0")
    assert run_without_iptables(status, "STATUS", sandbox).error()["code"] == 50


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("other", [*BACKENDS, None])
def test_rules_go_whatever_the_configuration_names_by_then(masqueraded, sandbox, backend, other):
    """DEL removes the rules of both backends."""
    masqueraded.having(ipMasqBackend=backend).add(sandbox)
    assert made_by(masqueraded) == {backend}
    masqueraded.having(ipMasqBackend=other).delete(sandbox)
    assert made_by(masqueraded) == set()


@pytest.mark.parametrize("value", ["yes", 1])
def test_rules_go_with_a_broken_key(masqueraded, sandbox, value):
    """DEL removes the rules when ipMasq has become something of a wrong type."""
    masqueraded.add(sandbox)
    masqueraded.having(ipMasq=value).delete(sandbox)
    assert made_by(masqueraded) == set()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [False, None])
def test_rules_go_after_the_keys_were_switched_off(masqueraded, sandbox, backend, value):
    """DEL removes masquerade rules and MAC spoof check also when the configuration no longer asks for them."""
    masqueraded.having(ipMasqBackend=backend, macspoofchk=True).add(sandbox)
    assert made_by(masqueraded) == {backend}
    masqueraded.having(ipMasq=value, macspoofchk=value).delete(sandbox)
    assert made_by(masqueraded) == set()
    assert sandbox.name not in "".join(nft_rules(masqueraded.host))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gc_looks_at_both(masqueraded, sandbox, new_sandbox, backend):
    """GC removes the rules of pods that are not listed, and only when there is a list."""
    net = masqueraded.having(ipMasqBackend=backend, cniVersion="1.1.0")
    kept, gone = sandbox, new_sandbox()
    net.check(kept, result := net.add(kept))
    net.add(gone)
    net.run("GC").assert_silent()
    assert len(net.leases()) == 4
    net.having(**{"cni.dev/valid-attachments": [{"containerID": kept.name, "ifname": "eth0"}]}).run(
        "GC"
    ).assert_silent()
    assert set(net.leases().values()) == {kept.name}
    net.check(kept, result)
    rules = "".join(iptables_rules(net.host) + iptables_rules(net.host, "ip6tables") + nft_rules(net.host))
    assert kept.name in rules
    assert gone.name not in rules


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_failure_after_the_rules_takes_them_back(masqueraded, new_sandbox, backend):
    """When the gateway's address cannot be had, which is seen last, no rule stays of the failed ADD."""
    masqueraded.add(new_sandbox())
    pod = new_sandbox()
    subnet = [[{"subnet": "10.33.0.0/16"}]]
    other = masqueraded.having(
        name="other", ipMasqBackend=backend, macspoofchk=True, ipam={**masqueraded.config["ipam"], "ranges": subnet}
    )
    assert "already has an IP address different from" in other.run("ADD", pod).error()["msg"]
    rules = "".join(iptables_rules(other.host) + iptables_rules(other.host, "ip6tables") + nft_rules(other.host))
    assert pod.name not in rules
    assert other.leases() == {}


@pytest.mark.needs("iptables_legacy_nat")
def test_what_fails_does_not_keep_the_rest(masqueraded, sandbox, tmp_path):
    """When iptables cannot be used DEL still deletes the interface and releases the address, and tells; then again."""
    program = tmp_path / "iptables-restore"
    program.symlink_to("/usr/sbin/xtables-legacy-multi")
    net = masqueraded.having(ipMasqBackend="iptables", ipam={**masqueraded.config["ipam"], "ranges": [IPV4]})
    net = replace(net, env={"PATH": f"{tmp_path}:/usr/sbin:/usr/bin"})
    result = net.add(sandbox)
    program.unlink()
    program.write_text(
        '#!/bin/sh\nlines=$(cat)\ncase "$lines" in *-X*) echo broken >&2; exit 2;; esac\n'
        'printf "%s\\n" "$lines" | /usr/sbin/iptables-legacy-restore "$@"\n'
    )
    program.chmod(0o755)
    error = net.run("DEL", sandbox, prev_result=result).error()
    assert "failed to delete masquerade rules" in error["msg"]
    assert "broken" in error["details"]
    assert (net.leases(), set(links(sandbox))) == ({}, {"lo"})
    assert "CNI-" in net.host.run("iptables-legacy-save")
    program.unlink()
    program.symlink_to("/usr/sbin/xtables-legacy-multi")
    net.delete(sandbox)
    assert "CNI-" not in net.host.run("iptables-legacy-save")


@pytest.mark.parametrize("program", ["exit 0", "exit 1", "exit 3", "kill -9 $$", "echo rubbish", "sleep 100"])
def test_rules_go_without_the_program(masqueraded, sandbox, tmp_path, program):
    """DEL takes away what iptables-nft made whatever has become of it, also beside rules that it cannot express."""
    net = masqueraded.having(ipMasqBackend="iptables")
    net.add(sandbox)
    net.host.run("nft", "add rule ip nat POSTROUTING ip saddr 1.2.3.4 ip daddr { 1.1.1.1, 2.2.2.2 } masquerade")
    for name in ("iptables-restore", "ip6tables-restore"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / name).chmod(0o755)
    replace(net, env={"PATH": f"{tmp_path}:/usr/sbin:/usr/bin"}).delete(sandbox)
    rules = "".join(nft_rules(net.host))
    assert "CNI-" not in rules
    assert "1.2.3.4" in rules
    assert net.leases() == {}


def test_gc_leaves_what_proves_nothing(masqueraded, sandbox):
    """A jump with a comment of the network that leads to a chain of another name stays, and is counted on stderr."""
    masqueraded.add(sandbox)
    host = masqueraded.host
    host.run("iptables", "-t", "nat", "-N", "FOREIGN")
    comment = ("-m", "comment", "--comment", 'name: "net" id: "other"')
    host.run("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.9", *comment, "-j", "FOREIGN")
    outcome = masqueraded.having(cniVersion="1.1.0", **{"cni.dev/valid-attachments": []}).run("GC")
    outcome.assert_silent()
    assert "1 masquerade rule(s) seem to be of network net and stay" in outcome.stderr
    assert "CNI-" not in "".join(iptables_rules(host))
    assert "192.0.2.9/32" in "".join(iptables_rules(host))


def test_a_foreign_jump_to_the_masquerade_does_not_stop_del(masqueraded, sandbox):
    """Where somebody else's rule jumps to the container's chain, DEL leaves it empty and says so."""
    masqueraded.add(sandbox)
    host = masqueraded.host
    (chain,) = {rule.rpartition(" ")[2] for rule in iptables_rules(host) if rule.startswith("-A POSTROUTING")}
    host.run("iptables", "-t", "nat", "-N", "FOREIGN")
    host.run("iptables", "-t", "nat", "-A", "FOREIGN", "-s", "192.0.2.9", "-j", chain)
    outcome = masqueraded.run("DEL", sandbox)
    outcome.assert_silent()
    assert outcome.stderr == f"podwire: chain nat {chain} stays, empty: a rule that is not ours jumps there\n"
    left = [rule for rule in iptables_rules(host) if chain in rule]
    assert left == [f":{chain} -", f"-A FOREIGN -s 192.0.2.9/32 -j {chain}"]
    assert masqueraded.leases() == {}


def test_a_foreign_jump_does_not_stop_del(network, sandbox):
    """Where somebody else's rule jumps to the chain of a MAC spoof check, DEL leaves it empty and says so."""
    net = network.having(macspoofchk=True)
    net.add(sandbox)
    chain = f"cni-br-iface-{sandbox.name}-eth0"
    net.host.run("nft", f'add rule bridge nat PREROUTING iifname "foreign" jump {chain}')
    outcome = net.run("DEL", sandbox)
    outcome.assert_silent()
    assert outcome.stderr == f"bridge: chain nat {chain} stays, empty: a rule that is not ours jumps there\n"
    assert "macspoofchk" not in "".join(nft_rules(net.host))
    assert net.leases() == {}
