"""One running pod whose inside is checked: what was read of it, and the commands that are run in its namespace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

from attachment.sandbox import gateway_of
from cni.address import Address, Cidr, Network, host_cidr
from kernel.link import Link
from podwire.doctor.finding import Fault, Finding, Severity
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import VethPod
from podwire.doctor.shell_command import ShellCommand
from podwire.facts.network import NetworkFacts


class InspectedPod:
    """A pod with the state of its namespace; `owners` are the pods of the node by their addresses."""

    def __init__(self, node: CheckedNode, pod: VethPod, interior: NetworkFacts, owners: dict[Address, VethPod]) -> None:
        self.node = node
        self.pod = pod
        self.interior = interior
        self.owners = owners
        self.ifname = pod.attachment.attachment.ifname
        self._enter = f"nsenter --net={quote(pod.attachment.netns)} "
        self._subject = f"{pod.item.network.name}: {pod.name} {self.ifname}"

    def finding(
        self, fault: Fault, text: str, fix: str, *, causes: bool = True, severity: Severity | None = None,
        advice: str = "", objects: tuple[str, ...] = (), behind: tuple[str, ...] = (),
    ) -> Finding:  # fmt: skip
        """Returns a finding of this pod; one that `causes` others explains CHECK's failure."""
        veth = self.pod.host_veth.name if self.pod.host_veth else ""
        objects += (self.pod.key, f"interior {veth}") if causes else ()
        return fault.finding(self._subject, text, fix, objects=objects, behind=behind, severity=severity, advice=advice)

    def inner(self, *commands: str) -> ShellCommand:
        """Returns commands that are run in the pod's namespace."""
        return ShellCommand(" && ".join(self._enter + command for command in commands))

    @property
    def networks(self) -> list[Network]:
        """The subnets of the pod's addresses, whose routes the kernel creates."""
        return [ip.address.network for ip in self.pod.attachment.typed_result.ips]

    def expected_routes(self) -> list[tuple[Cidr, Address | None]]:
        """Returns the routes of ADD's result, with their gateways; those in a VRF are in another table.

        A route to the gateway itself has no gateway: libcni before CNI 1.1 does not store its scope.
        """
        result = self.pod.attachment.typed_result
        is_in_vrf = any(plugin["type"] == "vrf" for plugin in self.pod.item.network.plugins)
        routes = [(one.dst, gateway_of(one, result.ips)) for one in result.routes if not (one.table or is_in_vrf)]
        return [(dst, None if gateway and dst == host_cidr(gateway) else gateway) for dst, gateway in routes]

    def restore(
        self, link: Link, *, up: bool = False, remove: Sequence[Cidr] = (), behind: Sequence[Cidr] = ()
    ) -> ShellCommand:
        """Returns the commands that restore addresses and routes as ADD's result has them.

        They delete the addresses `remove`; they add those of `behind` again behind the pod's own, as the kernel sends
        from the first one.
        """
        name = quote(self.ifname)
        commands = [f"ip link set {name} up"] if up else []
        present = {one.address for one in self.interior.addresses.get(link.index, ())}
        expected = [ip.address for ip in self.pod.attachment.typed_result.ips]
        deleted = [*remove, *behind, *self.with_other_prefix(present)]
        commands += [f"ip address del {one} dev {name}" for one in deleted]
        for one in expected:  # with the first address of a subnet the kernel deletes the others
            if one not in present or any(other.ip in one.network for other in deleted):
                commands.append(f"ip address replace {one} dev {name}{' nodad' if one.version == 6 else ''}")
        commands += [f"ip address replace {one} dev {name}" for one in behind]
        return self.inner(*commands, *self._route_commands())

    def with_other_prefix(self, present: Iterable[Cidr]) -> list[Cidr]:
        """Returns the addresses that ADD gave the pod with another prefix length."""
        expected = [ip.address for ip in self.pod.attachment.typed_result.ips]
        return [one for one in present if one not in expected and one.ip in self.pod.addresses]

    def _route_commands(self) -> list[str]:
        name, commands = quote(self.ifname), []
        for destination, gateway in self.expected_routes():
            family = "-6 " if destination.version == 6 else ""
            if gateway is not None and not any(gateway in network for network in self.networks):
                commands.append(f"ip {family}route replace {gateway} dev {name} scope link")
            via = f" via {gateway}" if gateway else ""
            commands.append(f"ip {family}route replace {destination.network}{via} dev {name}")
        return commands
