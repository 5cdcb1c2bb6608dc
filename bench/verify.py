"""Proves that a list's plugins work before they are timed: with packets, the kernel's objects and the lease files.

One rule: after DEL nothing remains, so that no rule or limit is measured that another call left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.attachment import Attachment, run_calls
from bench.process import Invocation, wait_all
from bench.subject import Config, Subject
from tests.support.namespaces import Namespace
from tests.support.netstate import links
from tests.support.processes import output
from tests.support.tcp import serving, source_address

_HOST = Namespace("host")  # the name that private_host.enter registers


def verify(subject: Subject, network: Config, chained: Sequence[Config], pod: Namespace, resident: Namespace) -> None:
    """Attaches a pod, asserts that all plugins have done their work, and detaches it."""
    attachment = Attachment(subject, network, chained, pod)

    def run(call: Invocation) -> tuple[None, bytes]:
        return None, subject.measure(call).outcome.stdout

    run_calls(attachment.calls("ADD"), run)
    addresses = [ip["address"].partition("/")[0] for ip in attachment.result["ips"]]
    assert len(addresses) == len(network["ipam"].get("ranges", [""])), f"{subject.label}: {addresses}"
    assigned = {address["local"] for address in links(pod)["eth0"]["addresses"]}
    assert set(addresses) == assigned, f"{subject.label}: the result has {addresses}, the interface {assigned}"
    for address in addresses:
        resident.run("ping", "-c", "1", "-w", "5", "-n", address)
    for ip in attachment.result["ips"]:
        pod.run("ping", "-c", "1", "-w", "5", "-n", ip["gateway"])
    is_filtered = "ipMasq" in network or {"portmap", "firewall"} & {plugin["type"] for plugin in chained}
    assert bool(_rules_with(addresses)) == bool(is_filtered), f"{subject.label}: {network} and {_rules_with(addresses)}"
    leases = [subject.store / network["name"] / address for address in addresses]
    assert all(lease.is_file() for lease in leases)
    limits = 2 * sum(plugin["type"] == "bandwidth" for plugin in chained)
    assert output("tc", "qdisc").count("qdisc tbf ") == limits, f"{subject.label}: {limits} limits are missing"
    _assert_ports(subject, attachment.result, chained, pod)
    for verb in ("CHECK", "DEL"):
        run_calls(attachment.calls(verb), run)
    wait_all()
    assert not _rules_with(addresses), f"{subject.label}: DEL left {_rules_with(addresses)}"
    assert set(links(pod)) == {"lo"}, f"{subject.label}: DEL left an interface"
    assert not [lease for lease in leases if lease.exists()], f"{subject.label}: DEL left a lease"
    assert "qdisc tbf " not in output("tc", "qdisc"), f"{subject.label}: DEL left a limit"


def _assert_ports(subject: Subject, result: Config, chained: Sequence[Config], pod: Namespace) -> None:
    """Connects from the host to the first and the last host port: they reach the pod."""
    (ip,) = result["ips"][:1]
    for plugin in chained:
        if plugin["type"] == "portmap":
            ports = [mapping["hostPort"] for mapping in plugin["runtimeConfig"]["portMappings"]]
            with serving(pod, ip["address"].partition("/")[0]):
                for port in (ports[0], ports[-1]):
                    assert source_address(_HOST, ip["gateway"], port), f"{subject.label}: port {port} is closed"


def _rules_with(addresses: Sequence[str]) -> list[str]:
    """Returns the iptables and nftables rules that contain one of `addresses`."""
    lines = f"{output('iptables-save')}\n{output('nft', 'list', 'ruleset')}".splitlines()
    return [line for line in lines if any(re.search(rf"\b{re.escape(address)}\b", line) for address in addresses)]
