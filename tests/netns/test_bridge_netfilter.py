"""bridge's "bridgeNetfilter": frames between pods of one bridge pass through iptables, as kube-proxy needs."""

import pytest

from kernel import modules
from tests.support.attaching import address, reaches
from tests.support.netstate import state
from tests.support.sockets import NO_ANSWER_S
from tests.support.tcp import PORT, serving, source_address

IPV4, IPV6 = "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"
SERVICES = ("10.96.0.10", "fd00:96::10")
MISSING = "mount -t tmpfs none /proc/sys/net/bridge"
READ_ONLY = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys"


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_service_is_answered_by_a_pod_of_the_same_bridge(dual_network, new_sandbox, enabled, family):
    """A service's answer from a pod of the same bridge reaches the caller with true, and is lost with false."""
    network = dual_network.having(bridgeNetfilter=enabled)
    caller, server = new_sandbox(), new_sandbox()
    caller_result = network.add(caller)
    target = address(network.add(server), family)
    tool = ("iptables", "ip6tables")[family]
    rule = ("-d", SERVICES[family], "-p", "tcp", "--dport", "80", "-j", "DNAT", "--to-destination")
    endpoint = f"[{target}]:{PORT}" if family else f"{target}:{PORT}"
    network.host.run(tool, "-w", "-t", "nat", "-A", "PREROUTING", *rule, endpoint)
    assert reaches(network.host, target)  # resolves the neighbour now, not while a connection waits
    assert reaches(caller, target)
    with serving(server, target):
        timeout_s = 20.0 if enabled else NO_ANSWER_S
        seen = source_address(caller, SERVICES[family], 80, timeout_s=timeout_s)
    assert seen == (address(caller_result, family) if enabled else "")


@pytest.mark.parametrize("enabled", [True, False])
def test_add_sets_the_configured_value(network, sandbox, enabled):
    """ADD sets the value for both families, CHECK passes, and DEL leaves the setting, which belongs to the host."""
    for key, value in ((IPV4, "1"), (IPV6, "0")):
        network.host.set_sysctl(key, value)
    network = network.having(bridgeNetfilter=enabled)
    result = network.add(sandbox)
    assert settings(network) == [str(int(enabled))] * 2
    network.check(sandbox, result)
    network.delete(sandbox, result)
    assert settings(network) == [str(int(enabled))] * 2


@pytest.mark.parametrize("value", ["0", "1"])
def test_setting_does_not_change_without_the_key(network, sandbox, value):
    """Without the key, ADD does not change the setting, and CHECK and STATUS accept any value."""
    for key in (IPV4, IPV6):
        network.host.set_sysctl(key, value)
    result = network.add(sandbox)
    network.check(sandbox, result)
    network.having(cniVersion="1.1.0").run("STATUS").assert_silent()
    assert settings(network) == [value] * 2


def test_failing_add_does_not_change_the_setting(scripted_network, sandbox):
    """An ADD that fails does not change the setting."""
    network = scripted_network(body='[ "$CNI_COMMAND" != ADD ] || exit 1')
    before = settings(network)
    network.having(bridgeNetfilter=before == ["0", "0"]).run("ADD", sandbox).error()
    assert settings(network) == before


def test_missing_module_is_reported(network, sandbox):
    """Without br_netfilter ADD with true fails, has the fix and leaves nothing; STATUS fails, too."""
    network = network.having(bridgeNetfilter=True, cniVersion="1.1.0")
    before = state(network.host), state(sandbox)
    error = network.run_after(MISSING, "ADD", sandbox).error()
    assert error["code"] == 999
    assert "/bridge-nf-call-iptables is missing" in error["msg"]
    assert (modules.get_obstacle("br_netfilter") or "modprobe br_netfilter") in error["details"]
    assert (state(network.host), state(sandbox), network.leases()) == (*before, {})
    error = network.run_after(MISSING, "STATUS", sandbox).error()
    assert error["code"] == 50
    assert (modules.get_obstacle("br_netfilter") or "modprobe br_netfilter") in error["details"]


@pytest.mark.parametrize("value", [False, None])
def test_false_needs_no_module(network, sandbox, value):
    """Without br_netfilter frames bypass iptables, so false and no key succeed."""
    network = network.having(bridgeNetfilter=value, cniVersion="1.1.0")
    network.run_after(MISSING, "STATUS", sandbox).assert_silent()
    assert network.run_after(MISSING, "ADD", sandbox).result()["ips"]


def test_read_only_sys_with_the_configured_value(network, sandbox, new_sandbox):
    """On a read-only /proc/sys ADD and STATUS succeed if the value is set, else name the command."""
    network = network.having(bridgeNetfilter=True, cniVersion="1.1.0")
    network.add(new_sandbox())  # sets the other settings that ADD needs
    network.run_after(READ_ONLY, "STATUS", sandbox).assert_silent()
    network.run_after(READ_ONLY, "ADD", sandbox).result()
    network.host.set_sysctl(IPV4, "0")
    other = new_sandbox()
    error = network.run_after(READ_ONLY, "ADD", other).error()
    assert error["msg"].endswith(f"/proc/sys/{IPV4}: Read-only file system")
    assert f"sysctl -w {IPV4}=1" in error["details"]
    error = network.run_after(READ_ONLY, "STATUS", other).error()
    assert (error["code"], f"sysctl -w {IPV4}=1" in error["details"]) == (50, True)


def test_status_accepts_a_value_that_add_can_set(network, sandbox):
    """STATUS succeeds with a wrong value that ADD can set."""
    network = network.having(bridgeNetfilter=True, cniVersion="1.1.0")
    network.host.set_sysctl(IPV4, "0")
    network.run("STATUS").assert_silent()
    assert network.host.sysctl(IPV4) == "0"


WARNINGS = {
    "kube-proxy and the setting off": (["iptables -t nat -N KUBE-SERVICES"], "0", True),
    "kube-proxy and the setting on": (["iptables -t nat -N KUBE-SERVICES"], "1", False),
    "kube-proxy with nftables": (["nft add table ip kube-proxy", "nft add chain ip kube-proxy services"], "0", True),
    "no kube-proxy": (["iptables -t nat -N KUBE-OTHERS"], "0", False),
    "kube-proxy's name elsewhere": (["iptables -t filter -N KUBE-SERVICES"], "0", False),
    "no rules at all": ([], "0", False),
    "iptables-legacy": (["iptables-legacy -t nat -N KUBE-SERVICES"], "0", False),
}


@pytest.mark.needs("iptables_nft_nat")
@pytest.mark.parametrize("case", WARNINGS)
def test_kube_proxy_without_the_setting_causes_a_warning(network, sandbox, case):
    """With kube-proxy's chains in nf_tables and the setting off, one line on stderr names the key."""
    commands, value, is_warned = WARNINGS[case]
    for command in commands:
        network.host.run(*command.split())
    network.host.set_sysctl(IPV4, value)
    outcome = network.run("ADD", sandbox)
    outcome.result()
    line = f'bridge: kube-proxy needs {IPV4}=1: set "bridgeNetfilter" to true\n'
    assert outcome.stderr == (line if is_warned else "")


@pytest.mark.needs("iptables_nft_nat")
def test_kube_proxy_without_the_module_causes_a_warning(network, sandbox):
    """With kube-proxy's chains and without br_netfilter, a masquerading network warns how to load it."""
    network.host.run("iptables-nft", "-t", "nat", "-N", "KUBE-SERVICES")
    outcome = network.having(ipMasq=True).run_after(MISSING, "ADD", sandbox)
    outcome.result()
    assert f"bridge: kube-proxy needs {IPV4}=1: {modules.explain_missing('br_netfilter')}" in outcome.stderr


def settings(network):
    """Returns the two values on the network's host."""
    return [network.host.sysctl(key) for key in (IPV4, IPV6)]
