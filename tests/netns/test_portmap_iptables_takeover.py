"""Host ports of iptables: rules that the reference plugin or podwire has created; order of rules; processes."""

import re
from dataclasses import replace
from ipaddress import ip_interface

import pytest

from kernel.netns import Netns, entered
from plugins.portmap import iptables_state
from plugins.portmap.host_ports import HostPorts, PortMapping
from tests.netns.conftest import NFT
from tests.support import xtables
from tests.support.bare_plugin import DUAL
from tests.support.xtables import TOOLS

MAPPINGS = ("8080:80", "192.0.2.1|8081:81", "2001:db8::1|8082:82", "53:53/udp", *(f"{n}:70" for n in range(7000, 7020)))
VARIANTS = [
    {},
    {"snat": False},
    {"markMasqBit": 5},
    {"conditionsV4": ["!", "-d", "192.0.2.9"], "conditionsV6": ["-m", "comment", "--comment", "a b"]},
]


@pytest.fixture
def podwire(iptables_ports):
    return iptables_ports


@pytest.fixture
def reference_net(iptables_ports, reference):
    return replace(iptables_ports, bin_dir=reference)


def owners(net):
    """Returns the container IDs of the jump rules, in order."""
    lines = [line for line in net.rules()["iptables"] if line.startswith("-A CNI-HOSTPORT-DNAT ")]
    return re.findall(r'id: \\"(\w+)', "\n".join(lines))


@pytest.fixture
def addresses(tools):
    """The pod's addresses: dual-stack, except where the reference plugin cannot create IPv6 rules.

    It checks whether a rule exists. ip6tables-legacy 1.8.9 then confuses two rules that differ only in their port.
    """
    return DUAL[:1] if tools.name == "legacy" else DUAL


@pytest.mark.parametrize("keys", VARIANTS)
def test_rules_of_the_reference_plugin(podwire, reference_net, keys, addresses):
    """CHECK accepts the rules of the reference plugin and names a missing one, ADD keeps them, DEL removes them."""
    podwire, reference_net = podwire.having(**keys), reference_net.having(**keys)
    reference_net.add("cid", *MAPPINGS, addresses=addresses)
    created = reference_net.rules()
    podwire.check("cid", *MAPPINGS, addresses=addresses)
    rules = [line for line in created["iptables"] if line.startswith("-A ")]
    for line in (line for line in rules if "CNI-DN-" in line):
        podwire.load("-D" + line[2:])
        error = podwire.run("CHECK", "cid", *MAPPINGS, addresses=addresses).error()
        assert " is missing in table nat" in error["msg"], line
        chain_rules = [other for other in rules if other.split()[1] == line.split()[1]]
        podwire.load(f"-I {line.split()[1]} {chain_rules.index(line) + 1} {line.split(' ', 2)[2]}")
    assert reference_net.rules() == created
    podwire.add("cid", *MAPPINGS, addresses=addresses)
    assert podwire.rules() == created
    podwire.delete("cid", *MAPPINGS)
    assert not podwire.container_rules()


@pytest.mark.parametrize("keys", VARIANTS)
def test_reference_plugin_handles_the_rules_of_podwire(podwire, reference_net, keys, addresses):
    """ADD of the reference plugin changes nothing after podwire's ADD, and its DEL removes podwire's rules."""
    podwire, reference_net = podwire.having(**keys), reference_net.having(**keys)
    podwire.add("cid", *MAPPINGS, addresses=addresses)
    created = podwire.rules()
    reference_net.add("cid", *MAPPINGS, addresses=addresses)
    assert reference_net.rules() == created
    reference_net.delete("cid", *MAPPINGS)
    assert not podwire.container_rules()


@pytest.mark.parametrize("keys", VARIANTS)
def test_reference_plugin_checks_the_rules_of_podwire(podwire, reference_net, tmp_path, keys):
    """CHECK of the reference plugin accepts podwire's rules if ip6tables is not installed, which it confuses."""
    path = tmp_path / "ipv4"
    path.mkdir()
    for name in ("iptables", "iptables-save"):
        (path / name).symlink_to(podwire.tools / name)
    options = {"addresses": DUAL[:1], "env": {"PATH": str(path)}}
    podwire.having(**keys).add("cid", *MAPPINGS, addresses=DUAL[:1])
    reference_net.having(**keys).check("cid", *MAPPINGS, **options)
    line = podwire.container_rules("iptables")[-1]
    podwire.load("-D" + line[2:])
    assert reference_net.having(**keys).run("CHECK", "cid", *MAPPINGS, **options).error()


def test_stale_address_of_the_reference_plugin(podwire, reference_net):
    """CHECK reports an old address that a repeated ADD of the reference plugin left first, and ADD removes it."""
    other = ["10.22.0.9/16", "fd00:22::9/64"]
    reference_net.add("cid", "8080:80")
    reference_net.add("cid", "8080:80", addresses=other)
    assert "is forwarded to 10.22.0.2:80" in podwire.run("CHECK", "cid", "8080:80", addresses=other).error()["msg"]
    podwire.add("cid", "8080:80", addresses=other)
    podwire.check("cid", "8080:80", addresses=other)


@pytest.fixture
def cached(podwire, tmp_path):
    """The network, with a plugin that uses a cache of the test."""
    return podwire.with_cache(tmp_path / "cache")


def test_two_interfaces_of_one_container(cached):
    """ADD keeps rules that forward to the container's other interface, and removes them if it no longer exists."""
    net = cached
    second = ["10.22.0.9/16", "fd00:22::9/64"]
    net.add("cid", "8080:80")
    net.write_cache(cid=True)
    for _ in range(2):
        net.add("cid", "8080:80", "8081:81", addresses=second, ifname="eth1")
        net.check("cid", "8080:80")
        net.check("cid", "8080:80", "8081:81", addresses=second, ifname="eth1")
    assert len(owners(net)) == 2
    net.write_cache(cid=False)
    net.add("cid", "8080:80", addresses=second, ifname="eth1")
    assert owners(net) == ["cid"]
    assert not any("10.22.0.2:" in line for line in net.container_rules())


def test_number_of_processes(podwire, tmp_path):
    """With iptables-nft ADD runs one process for each IP version, two if a port is in use, CHECK one, and DEL none.

    CHECK of a few ports runs none: it recognises their rules over netlink.
    """
    net = replace(podwire, tools=xtables.counted(podwire.tools, tmp_path / "counted"))
    legacy = podwire.tools.name == "legacy"
    one_process, two_processes = (
        sorted(f"{tool}-restore" for tool in TOOLS),
        sorted(f"{tool}-restore" for tool in TOOLS * 2),
    )
    mappings = [f"{port}:80" for port in range(7000, 7100)]
    net.add("first", *mappings)
    assert xtables.calls(net.tools) == one_process
    net.add("second", "9000:90", addresses=["10.22.0.3/16", "fd00:22::3/64"])
    assert xtables.calls(net.tools) == (two_processes if legacy else one_process)
    net.check("second", "9000:90", addresses=["10.22.0.3/16", "fd00:22::3/64"])
    assert xtables.calls(net.tools) == (one_process if legacy else [])
    net.add("third", *mappings, addresses=["10.22.0.4/16", "fd00:22::4/64"])
    assert xtables.calls(net.tools) == two_processes
    net.add("first", *mappings)
    assert xtables.calls(net.tools) == two_processes
    net.check("first", *mappings)
    assert xtables.calls(net.tools) == one_process
    net.having(conditionsV4=["-m", "comment", "--comment", "x"]).run("CHECK", "first", *mappings)
    assert xtables.calls(net.tools) == one_process
    net.delete("third", *mappings)
    assert xtables.calls(net.tools) == (two_processes if legacy else [])
    net.delete("third", *mappings)
    assert xtables.calls(net.tools) == (one_process if legacy else [])


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_check_runs_a_process_for_an_unknown_rule(podwire, tmp_path):
    """CHECK runs iptables-restore only if the container's chain, or a jump rule for its port, is not recognised."""
    net = replace(podwire, tools=xtables.counted(podwire.tools, tmp_path / "counted"))
    net.add("cid", "8080:80", "8081:81", "192.0.2.1|53:53/udp")
    chain = next(line.split()[1] for line in net.rules()["iptables"] if line.startswith("-A CNI-DN-"))
    xtables.calls(net.tools)
    for line in (f"{chain} -p tcp -j LOG", "CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8081:8090 -j RETURN"):
        net.check("cid", "8080:80", "8081:81", "192.0.2.1|53:53/udp")
        assert xtables.calls(net.tools) == []
        net.load(f"-A {line}")
        xtables.calls(net.tools)
        net.check("cid", "8080:80", "8081:81", "192.0.2.1|53:53/udp")
        assert xtables.calls(net.tools) == ["iptables-restore"]
        net.load(f"-D {line}")
        xtables.calls(net.tools)


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_duplicate_shared_rules_are_deleted(podwire, host):
    """Duplicate shared rules, as parallel ADDs create them, are deleted, and other programs' rules stay."""
    podwire.having(markMasqBit=5).add("other", "8081:80")
    podwire.add("cid", "8080:80")
    before = podwire.rules()
    for tool in TOOLS:
        lines = [line for line in before[tool] if line.startswith("-A") and "CNI-DN-" not in line]
        lines = [line for line in lines if "0x20/" not in line]
        podwire.load(*lines, "-A PREROUTING -j RETURN", *lines, tool=tool)
    with Netns(host.path) as namespace, entered(namespace):
        addresses = {4: ip_interface("10.22.0.2/16"), 6: ip_interface("fd00:22::2/64")}
        iptables_state.delete_duplicate_rules(
            HostPorts("net", "cid", "eth0", (PortMapping(8080, 80, "tcp"),), addresses)
        )
    after = podwire.rules()
    for tool in TOOLS:
        assert sorted([*before[tool], "-A PREROUTING -j RETURN"]) == sorted(after[tool])
