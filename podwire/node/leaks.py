"""Finds leaked objects of attachments that are no longer running, each with a command that removes it.

An object is leaked only if its owner provably does not run: it is known to have stopped, or it is unknown
although the cache or a store records its network's attachments. An object that names no owner is never a leak.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from shlex import quote

from attachment import host_routes
from cni.conf import Attachment
from cni.versions import at_least
from kernel.link import Link
from kernel.netfilter.owned import FIREWALL, HOST_PORT, MASQUERADE, NFTABLES, OwnedRule
from plugins.bandwidth import ifb_owner as bandwidth
from plugins.bandwidth.ifb_owner import IfbOwner
from podwire.node import rules
from podwire.node.model import NO_ATTACHMENT, AttachmentState, Leak, Pod
from podwire.node.records import bridge_names
from podwire.node.snapshot import Snapshot

HOST_VETH = re.compile(r"veth[0-9a-f]{8}")  # the names of host veths of podwire and the reference plugins
_NAMES = {HOST_PORT: "host port", MASQUERADE: "masquerade rule", FIREWALL: "firewall rule"}


def find_leaks(snapshot: Snapshot) -> tuple[Leak, ...]:
    """Returns all leaks, by kind."""
    finder = _Finder(snapshot)
    return (
        *finder.reservations(),
        *finder.cached(),
        *finder.veths(),
        *finder.rules(),
        *finder.ifbs(),
        *finder.host_links(),
        *finder.backups(),
    )


def fix_for(snapshot: Snapshot, network: str, attachment: Attachment) -> str:
    """Returns a command that removes everything leaked of an attachment.

    `podwire gc` runs GC of all plugins from CNI 1.1.0 on (before, only of podwire's), and DEL of attachments in the
    cache. For a network without a file in net.d it uses the configuration in the cache.
    """
    cached = snapshot.cached_by_network.get(network, set())
    configured = next(iter(snapshot.records.configurations.get(network, ())), None)
    if configured and (attachment in cached or at_least(configured.version, "1.1.0")):
        return f"podwire gc {network}"
    if attachment.container_id and (configured or cached):
        ifname = f" -i {quote(attachment.ifname)}" if attachment.ifname else ""
        return f"podwire del {quote(network)} --container-id {quote(attachment.container_id)}{ifname}"
    return f"put the file of network {network} back into net.d, then: podwire gc {quote(network)}"


@dataclass(frozen=True)
class _Finder:
    snapshot: Snapshot

    def reservations(self) -> Iterator[Leak]:
        for pool in self.snapshot.records.pools:
            for item in pool.reservations:
                if self.snapshot.is_gone(item):
                    fix = f"podwire ipam free {item.file.name} {quote(item.network)}"
                    if item.attachment in self.snapshot.cached_by_network.get(item.network, ()):
                        fix = fix_for(self.snapshot, item.network, item.attachment)  # also removes the rest
                    yield Leak("reservation", f"address {item.file.name}", fix, item.network, item.attachment)

    def cached(self) -> Iterator[Leak]:
        for pod in self.snapshot.pods:
            if pod.state is AttachmentState.GONE:
                description = f"cache entry, whose network namespace no longer exists: {pod.netns}"
                yield Leak(
                    "cache",
                    description,
                    fix_for(self.snapshot, pod.network, pod.attachment),
                    pod.network,
                    pod.attachment,
                )

    def veths(self) -> Iterator[Leak]:
        """Yields the veths on our bridges that have a host veth's name and belong to no attachment.

        Without veths whose peer is in an unknown namespace or on the host: a VLAN's gateway, a link to another bridge.
        """
        kernel, networks_by_bridge = self.snapshot.kernel, self._networks_by_bridge
        known = {pod.host_interface for pod in self.snapshot.pods}
        for port in kernel.links:
            master = kernel.by_index.get(port.master)
            networks = networks_by_bridge.get(master.name, ()) if master else ()
            if port.kind != "veth" or master is None or port.name in known or not HOST_VETH.fullmatch(port.name):
                continue
            namespace = kernel.namespace_behind(port)
            if not networks or not all(map(self._has_all_veths, networks)):
                continue
            if namespace is None or namespace.links is None:
                continue
            peer = next((link.name for link in namespace.links.values() if link.index == port.iflink), "?")
            where = f"its peer is {peer} in {namespace.path}, which belongs to no attachment"
            yield Leak("veth", f"{port.name} on {master.name}, {where}", _delete_command(port), networks[0])

    def rules(self) -> Iterator[Leak]:
        """Yields the rules of attachments that no longer run, one leak for each owner, purpose and backend."""
        by_owner: dict[tuple[str, ...], list[OwnedRule]] = {}
        for item in self.snapshot.rules.owned:
            if self._is_gone(item.owner_key, item.network, item.container_id):
                owner = item.owner_key.hex(), item.network, item.container_id, item.ifname
                by_owner.setdefault((item.what, item.backend, *owner), []).append(item)
        for items in by_owner.values():
            first = items[0]
            subject = ", ".join(sorted({item.subject for item in items} - {""}))
            where = ", ".join(dict.fromkeys(item.where for item in items))
            description = f"{_NAMES[first.what]}{f' {subject}' if subject else ''} ({first.backend}: {where})"
            network, attachment = first.network, Attachment(first.container_id, first.ifname)
            if pods := self._by_owner_key.get(first.owner_key, []):  # rules may name less than the records
                network, attachment = pods[0].network, pods[0].attachment
            fix = self._rule_fix(first.backend, network, attachment)
            yield Leak(first.what, description, fix, network, attachment)

    def ifbs(self) -> Iterator[Leak]:
        for link in self.snapshot.kernel.links:
            named = bandwidth.owner_from_alias(link.alias)
            is_reference_s = not link.alias and bandwidth.NAME.fullmatch(link.name)
            if link.kind != "ifb" or not link.name.startswith(bandwidth.PREFIX) or not (named or is_reference_s):
                continue
            network = named.network if named else ""
            if self._is_gone((link.alias or link.name).encode(), network, named.container_id if named else ""):
                attachment = Attachment(named.container_id, named.ifname) if named else NO_ATTACHMENT
                fix = fix_for(self.snapshot, network, attachment) if named else _delete_command(link)
                yield Leak("ifb", f"interface {link.name}, which limits a pod's egress", fix, network, attachment)

    def host_links(self) -> Iterator[Leak]:
        """Yields leaked objects of `hostAccess`: routes to pods no longer running, host links without routes."""
        pods = {host_routes.compute_owner(pod.network, pod.attachment): pod for pod in self.snapshot.pods}
        for link, owners in self.snapshot.kernel.host_links.items():
            if not owners:
                yield Leak("host link", f"interface {link.name}, by which the host reached pods", _delete_command(link))
            for owner in owners:
                pod = pods.get(owner)
                networks = [name for name in self._recorded if host_routes.is_of_network(owner, name)]
                if pod is None and networks and self._has_records(networks[0]):
                    network, attachment = networks[0], NO_ATTACHMENT
                elif pod is not None and pod.leaked:
                    network, attachment = pod.network, pod.attachment
                else:
                    continue
                fix = fix_for(self.snapshot, network, attachment)
                yield Leak("host route", f"the host's route to a pod through {link.name}", fix, network, attachment)

    def backups(self) -> Iterator[Leak]:
        """Yields the tuning plugin's backups of interface settings."""
        for data_dir, network, attachment in self.snapshot.records.backups:
            pods = self.snapshot.pods_of(network, attachment)
            if all(pod.leaked for pod in pods) and (pods or self._has_records(network)):
                description = f"tuning's backup in {data_dir}"
                yield Leak("backup", description, fix_for(self.snapshot, network, attachment), network, attachment)

    @cached_property
    def _by_owner_key(self) -> Mapping[bytes, list[Pod]]:
        by_owner_key: dict[bytes, list[Pod]] = {}
        for pod in self.snapshot.pods:
            owner = IfbOwner(pod.network, *pod.attachment)
            ifbs = (owner.alias.encode(), *(name.encode() for name in owner.names))
            for owner_key in (*rules.owner_keys(pod.network, pod.attachment), *ifbs):
                by_owner_key.setdefault(owner_key, []).append(pod)
        return by_owner_key

    @cached_property
    def _recorded(self) -> set[str]:
        """The networks whose attachments are recorded, in the runtime's cache or in host-local's store."""
        pools = (pool.network for pool in self.snapshot.records.pools if pool.reservations or pool.last_reserved)
        return {item.network_name for item in self.snapshot.records.cached}.union(pools)

    def _has_records(self, network: str = "") -> bool:
        """Returns whether an attachment without a record does not run; "" means that its network is unknown."""
        return self.snapshot.records.is_cache_complete and (
            network in self._recorded if network else bool(self._recorded)
        )

    def _is_gone(self, owner_key: bytes, network: str, container_id: str) -> bool:
        """Returns whether an owner provably does not run; it is identified by its key, else by its container."""
        if not owner_key and not container_id:
            return False
        pods = self._by_owner_key.get(owner_key, [])
        if not owner_key or not pods:
            same = (pod for pod in self.snapshot.pods if pod.attachment.container_id == container_id)
            pods = [pod for pod in same if network in ("", pod.network)] if container_id else []
        return all(pod.leaked for pod in pods) and (bool(pods) or self._has_records(network))

    def _has_all_veths(self, network: str) -> bool:
        """Returns whether the host veth of every attachment of a network is known.

        It is not while an ADD is running, or if an attachment's namespace could not be read: any veth may be its.
        """
        pods = [pod for pod in self.snapshot.pods if pod.network == network]
        uncached = (pod for pod in pods if pod.state is AttachmentState.NO_CACHE and not pod.leaked)
        is_seen = all(pod.state not in (AttachmentState.NOT_SEEN, AttachmentState.UNKNOWN) for pod in pods)
        return self._has_records(network) and is_seen and all(pod.host_interface for pod in uncached)

    @cached_property
    def _networks_by_bridge(self) -> Mapping[str, list[str]]:
        """The networks of each bridge."""
        by_bridge: dict[str, list[str]] = {}
        for name, configurations in self.snapshot.records.configurations.items():
            for bridge in bridge_names(configurations[0], self.snapshot.kernel):
                by_bridge.setdefault(bridge, []).append(name)
        return by_bridge

    def _rule_fix(self, backend: str, network: str, attachment: Attachment) -> str:
        if network:
            return fix_for(self.snapshot, network, attachment)
        program = "nft list ruleset" if backend == NFTABLES else "iptables-save"
        return f"delete the rule by hand, as it does not name its network; find it with: {program}"


def _delete_command(link: Link) -> str:
    return f"ip link delete {quote(link.name)}"
