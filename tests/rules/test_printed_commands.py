"""No command in the sources or the documents exposes an interface that is not podwire's."""

import ast
from collections.abc import Iterator

import pytest

from tests.support import exposing_commands
from tests.support.binaries import ROOT
from tests.support.markdown import documents
from tests.support.sources import FILLED, files, messages

ROOMS = ("process", "cni", "kernel", "attachment", "ipam", "plugins", "podwire")
PODWIRE_BRIDGES = ("cni0", "BRIDGE")  # the bridge of the samples, and a placeholder for it
SUBNETS = ("10.22.0.0/24", "10.26.0.0/16")  # the pods' in the samples

# Commands for a computed setting: the module, the expression, and the reason why it exposes no other interface.
SETTINGS = {
    ("attachment/forwarding.py", "_NAMES[version]"): "the node's forwarding, which pods need",
    ("attachment/forwarding.py", "name"): "the same, and accept_ra where it was 1",
    ("kernel/sysctl.py", "name"): "the callers of ensure_or_fail() stand in this table",
    ("plugins/bridge/bridge_nf_call.py", "name"): "net/bridge, of no interface",
    ("plugins/bridge/bridge_device.py", "setting"): "disable_ipv6 of the bridge",
    ("plugins/bridge/bridge_device.py", "'ipv6/conf/all/disable_ipv6'"): "IPv6 off on the node, whose network needs it",
    ("plugins/bridge/bridge_device.py", "'ipv6/conf/default/disable_ipv6'"): "the same, of new interfaces",
    ("plugins/ipvlan/interface.py", "name"): "rp_filter of the master: loose, and only if it was strict",
    (
        "plugins/portmap/localhost.py",
        "route_localnet_setting(interface)",
    ): "of an interface of prevResult, behind its guard",
    ("plugins/ptp/routed.py", "f'ipv6/conf/{host_veth.name}/disable_ipv6'"): "of the pod's host veth",
    ("podwire/doctor/kernel.py", "name"): "the node's forwarding, a network's bridge, accept_ra, a size of a table",
    ("podwire/doctor/kernel.py", "setting"): "disable_ipv6",
    ("podwire/doctor/routes.py", "name"): "rp_filter: loose, and only if it was strict",
    ("podwire/doctor/settings.py", "name"): "the settings of its table, none of which forwards or accepts",
    ("podwire/doctor/way_out.py", "f'ipv6/conf/{link.name}/accept_ra'"): "off",
    ("podwire/doctor/way_out.py", "name"): "IPv6 on an uplink, only as advice",
    ("podwire/doctor/interior_routes.py", "f'ipv6/conf/{link.name}/accept_ra'"): "off",
    ("podwire/doctor/kernel.py", "_BRIDGED"): "net/bridge, of no interface",
    ("podwire/doctor/kernel.py", "_MAX"): "a size of a table",
}


def list_settings() -> Iterator[tuple[str, str]]:
    """Yields module and argument of each call that builds, or may print, a command for a setting."""
    for path in files(*ROOMS):
        text = path.read_text()
        names = ("sysctl.command", "sysctl.ensure_or_fail", *(["command"] if path.name == "sysctl.py" else []))
        for node in ast.walk(ast.parse(text)) if "sysctl" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
                yield str(path.relative_to(ROOT)), ast.unparse(node.args[0])


def test_every_command_for_a_setting_is_listed():
    """Each place that prints a command for a kernel setting is listed with the reason why it is safe."""
    assert set(list_settings()) == set(SETTINGS)


def test_commands_in_the_sources():
    """No text in the sources is a command that exposes an interface that is not podwire's.

    tests/netns/test_tool_doctor_table.py checks the texts with their values, as printed.
    """
    texts = messages(*ROOMS)
    exposing = (command for text in texts for command in exposing_commands.commands(text, PODWIRE_BRIDGES, SUBNETS))
    assert [command for command in exposing if FILLED not in command] == []


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_the_documents(path):
    """No page has a command that exposes an interface that is not podwire's."""
    assert list(exposing_commands.commands(path.read_text(), PODWIRE_BRIDGES, SUBNETS)) == []


@pytest.mark.parametrize(
    "text",
    [
        "sysctl -w net/ipv4/conf/eth1/route_localnet=1",
        "sysctl -w net.ipv4.conf.eth1.forwarding=1",
        "sysctl -w net/ipv4/conf/all/route_localnet=1",
        "iptables -I FORWARD -i eth1 -j ACCEPT",
        "iptables -I FORWARD -j ACCEPT",
        "iptables -I FORWARD -d 0.0.0.0/0 -j ACCEPT",
        "nft insert rule ip filter FORWARD oifname eth1 accept",
        "nft insert rule ip filter FORWARD accept",
    ],
)
def test_exposing_commands_are_recognized(text):
    """Commands that expose another interface are recognized."""
    assert list(exposing_commands.commands(f"set it: {text}; for good", PODWIRE_BRIDGES, SUBNETS)) != []
