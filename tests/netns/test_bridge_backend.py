"""Backends of masquerading: ADD chooses one, DEL and GC remove the rules of both; failures of the programs."""

from dataclasses import replace

import pytest

from tests.netns.conftest import IPV4, IPV6
from tests.support.netstate import iptables_rules, links, nft_rules

pytestmark = pytest.mark.needs("nft_nat", "iptables_nft_nat")

BACKENDS = ("iptables", "nftables")
# In a new mount namespace, a file that is not executable replaces the program.
WITHOUT_IPTABLES = "mount --bind /dev/null /usr/sbin/xtables-nft-multi"


@pytest.fixture
def masqueraded(dual_network):
    """A masqueraded network without `ipMasqBackend`."""
    return dual_network.having(ipMasq=True)


def backends_with_rules(network):
    """Returns the backends that have rules of this host's pods."""
    rules_by_backend = {"iptables": [rule for rule in iptables_rules(network.host) if "CNI-" in rule]}
    rules_by_backend["nftables"] = [rule for rule in nft_rules(network.host) if "net: net, if: eth0" in rule]
    return {backend for backend, rules in rules_by_backend.items() if rules}


def test_iptables_is_the_default_backend(masqueraded, sandbox):
    """Without `ipMasqBackend`, iptables adds the rules if it is installed."""
    masqueraded.check(sandbox, masqueraded.add(sandbox))
    assert backends_with_rules(masqueraded) == {"iptables"}


def test_nftables_is_used_without_iptables(masqueraded, sandbox):
    """Without `ipMasqBackend` and iptables, nftables adds the rules; CHECK and DEL use it, too."""
    result = masqueraded.run_after(WITHOUT_IPTABLES, "ADD", sandbox).result()
    assert backends_with_rules(masqueraded) == {"nftables"}
    masqueraded.run_after(WITHOUT_IPTABLES, "CHECK", sandbox, prev_result=result).assert_silent()
    masqueraded.run_after(WITHOUT_IPTABLES, "DEL", sandbox, prev_result=result).assert_silent()
    assert backends_with_rules(masqueraded) == set()


def test_check_accepts_both_backends(masqueraded, sandbox):
    """CHECK still passes for pods that nftables masquerades after iptables was installed on the node."""
    result = masqueraded.having(ipMasqBackend="nftables").add(sandbox)
    masqueraded.check(sandbox, result)
    masqueraded.host.run("nft", "flush", "chain", "inet", "cni_plugins_masquerade", "masq_checks")
    error = masqueraded.run("CHECK", sandbox, prev_result=result).error()
    assert "masquerade: " in error["msg"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "changed",
    [
        *({"ipMasqBackend": other} for other in (*BACKENDS, None)),
        *({"ipMasq": value, "macspoofchk": None} for value in (False, None, "yes", 1)),
    ],
)
def test_del_removes_rules_of_both_backends(masqueraded, sandbox, backend, changed):
    """DEL removes the rules of both backends, whichever one, or whatever `ipMasq`, the configuration has by then."""
    net = masqueraded.having(ipMasqBackend=backend, macspoofchk=True)
    net.add(sandbox)
    assert backends_with_rules(net) == {backend}
    net.having(**changed).delete(sandbox)
    assert backends_with_rules(net) == set()
    assert sandbox.name not in "".join(nft_rules(net.host))


@pytest.mark.parametrize("backend", BACKENDS)
def test_failed_add_removes_its_rules(masqueraded, new_sandbox, backend):
    """If the gateway address conflicts, which is the last step, ADD removes the rules that it added."""
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
def test_del_continues_after_a_failure_of_iptables(masqueraded, sandbox, tmp_path):
    """If iptables fails, DEL still deletes interface and lease and reports the failure; the next DEL succeeds."""
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
def test_del_removes_iptables_nft_rules_without_the_program(masqueraded, sandbox, tmp_path, program):
    """DEL removes rules of iptables-nft if the program fails, also beside rules that it cannot express."""
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


def test_del_removes_the_rules_of_an_ipv6_pod(masqueraded, sandbox):
    """DEL removes the rules of iptables-nft of a pod that has no IPv4 address, and so no chain in IPv4's table."""
    net = masqueraded.having(ipam={**masqueraded.config["ipam"], "ranges": [IPV6]})
    net.add(sandbox)
    assert "CNI-" in "".join(nft_rules(net.host))
    net.delete(sandbox)
    assert "CNI-" not in "".join(nft_rules(net.host))


def test_gc_keeps_rules_without_proof_of_ownership(masqueraded, sandbox):
    """A jump with a comment of the network to a chain with another name stays, and stderr counts it."""
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


def test_del_flushes_a_masquerade_chain_with_a_foreign_jump(masqueraded, sandbox):
    """If a foreign rule jumps to the container's chain, DEL flushes the chain and reports it."""
    masqueraded.add(sandbox)
    host = masqueraded.host
    (chain,) = {rule.rpartition(" ")[2] for rule in iptables_rules(host) if rule.startswith("-A POSTROUTING")}
    host.run("iptables", "-t", "nat", "-N", "FOREIGN")
    host.run("iptables", "-t", "nat", "-A", "FOREIGN", "-s", "192.0.2.9", "-j", chain)
    outcome = masqueraded.run("DEL", sandbox)
    outcome.assert_silent()
    assert outcome.stderr == f"podwire: chain nat {chain} stays, empty: a rule of another program jumps there\n"
    remaining = [rule for rule in iptables_rules(host) if chain in rule]
    assert remaining == [f":{chain} -", f"-A FOREIGN -s 192.0.2.9/32 -j {chain}"]
    assert masqueraded.leases() == {}


def test_del_flushes_a_mac_spoof_chain_with_a_foreign_jump(network, sandbox):
    """If a foreign rule jumps to the chain of a MAC spoof check, DEL flushes the chain and reports it."""
    net = network.having(macspoofchk=True)
    net.add(sandbox)
    chain = f"cni-br-iface-{sandbox.name}-eth0"
    net.host.run("nft", f'add rule bridge nat PREROUTING iifname "foreign" jump {chain}')
    outcome = net.run("DEL", sandbox)
    outcome.assert_silent()
    assert outcome.stderr == f"bridge: chain nat {chain} stays, empty: a rule of another program jumps there\n"
    assert "macspoofchk" not in "".join(nft_rules(net.host))
    assert net.leases() == {}
