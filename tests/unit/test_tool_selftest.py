"""The facts that `podwire selftest` prints, and its networks."""

from ipaddress import IPv4Address
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from ipam.dhcp import packet
from podwire.main import PLUGINS
from podwire.networks import Network
from podwire.selftest import dhcp, facts, packets, trials
from podwire.selftest.node import PrivateNode
from podwire.selftest.run import median
from podwire.selftest.trials import list_trials

X86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7B13\n"
ARM = "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n"
RASPBERRY = f"{ARM}\nHardware\t: BCM2835\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [(X86, "AMD EPYC 7B13"), (ARM, "CPU implementer 0x41, CPU part 0xd0c"), (RASPBERRY, "BCM2835"), ("", "")],
)
def test_name_of_the_processor(text, name):
    """The processor's name is that of x86 or ARM, or the numbers of its designer and part."""
    assert facts._cpu_name(text) == name


def test_distribution_and_memory():
    """The distribution is PRETTY_NAME with or without quotes, the memory in MiB."""
    assert facts._distribution('NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12"\n') == "Debian GNU/Linux 12"
    assert facts._distribution("PRETTY_NAME=Alpine\n") == "Alpine"
    assert facts._distribution("") == ""
    assert facts._memory_mib("MemTotal:        2048000 kB\n") == 2000


@pytest.mark.parametrize(("values", "expected"), [([3.0], 3.0), ([4.0, 1.0], 2.5), ([9.0, 1.0, 2.0], 2.0)])
def test_median(values, expected):
    """The median of an even number of values is between the middle ones."""
    assert median(values) == expected


@pytest.mark.parametrize("ipv6", [True, False])
def test_networks_run_every_plugin(ipv6):
    """Together the networks run every plugin, and without IPv6 none has an IPv6 range."""
    trials = list_trials(ipv6=ipv6)
    assert {kind for trial in trials for kind in trial.kinds} == set(PLUGINS)
    for trial in trials:
        network = Network(trial.name, "1.1.0", trial.plugins)
        texts = [str(network.build_config(plugin)) for plugin in network.plugins]
        assert ipv6 or not any("fd00" in text for text in texts)


@pytest.mark.parametrize(("requested", "answered"), [(1, 2), (3, 5)])
@pytest.mark.every_case
def test_dhcp_server_offers_the_address(requested, answered):
    """DISCOVER and REQUEST are answered with the address, and with a lease time of 4 bytes, which clients require."""
    asking = packet.Message(packet.BOOTREQUEST, 7, b"\2\0\0\0\0\1", {packet.MESSAGE_TYPE: bytes((requested,))})
    answer = dhcp._answer(asking, IPv4Address("10.1.0.1"), IPv4Address("10.1.0.9"))
    assert answer
    assert (answer.xid, str(answer.yiaddr), answer.options[packet.MESSAGE_TYPE]) == (7, "10.1.0.9", bytes((answered,)))
    assert len(answer.options[51]) == 4


def test_every_address_of_a_pod_is_tried(monkeypatch):
    """A pod of a dual-stack network reaches another pod, and its gateway also in a VRF, by IPv4 and by IPv6."""
    first: Any = SimpleNamespace(netns=None, addresses=["10.1.0.2", "fd00::2"])
    first.ips = [{"gateway": "10.1.0.1"}, {"gateway": "fd00::1"}]
    pods: Any = [first, SimpleNamespace(addresses=["10.1.0.3", "fd00::3"])]
    node, ping = cast(PrivateNode, None), Mock(return_value=1.0)
    monkeypatch.setattr(packets, "ping", ping)
    gateways, others = (
        [("10.1.0.2", "10.1.0.1"), ("fd00::2", "fd00::1")],
        [("10.1.0.2", "10.1.0.3"), ("fd00::2", "fd00::3")],
    )
    for run, expected in ((trials._ping_node_and_pods, others + gateways), (trials._ping_gateway, gateways)):
        ping.reset_mock()
        assert len(list(run(node, pods))) == len(expected)
        assert [call.args[1:3] for call in ping.call_args_list] == expected
