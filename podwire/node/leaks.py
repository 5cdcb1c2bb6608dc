"""What is left of attachments that are gone, each thing with what takes it away.

One rule: a thing is told of only if its owner is surely gone: known to be dead, or unknown where books are kept of its
network. What does not say whose it is, is nobody's leak.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from shlex import quote

from cni.conf import Attachment
from cni.versions import at_least
from kernel.link import Link
from kernel.netfilter.owned import FIREWALL, HOST_PORT, MASQUERADE, NFTABLES, OwnedRule
from plugins.bandwidth import ifb_owner as bandwidth
from plugins.bandwidth.ifb_owner import Owner
from podwire.node import rules
from podwire.node.model import NO_ATTACHMENT, Leak, Pod, State
from podwire.node.records import bridge_names
from podwire.node.snapshot import Snapshot

POD_END = re.compile(r"veth[0-9a-f]{8}")  # ours and the reference's; those of others have other names
_NAMES = {HOST_PORT: "host port", MASQUERADE: "masquerade rule", FIREWALL: "firewall rule"}


def find_leaks(snapshot: Snapshot) -> tuple[Leak, ...]:
    """Returns all of them."""
    finder = _Finder(snapshot)
    return (
        *finder.reservations(),
        *finder.cached(),
        *finder.veths(),
        *finder.rules(),
        *finder.ifbs(),
        *finder.backups(),
    )


def fix_for(snapshot: Snapshot, network: str, attachment: Attachment) -> str:
    """Returns what takes away all that is left of an attachment.

    `podwire gc` runs GC of all plugins from CNI 1.1.0 on, before that of podwire's, and DEL of attachments in the
    cache. It takes a network without a file in net.d from the cache.
    """
    cached = snapshot.cached_by_network.get(network, set())
    made = (item.network for item in snapshot.records.cached if item.network_name == network and item.network)
    configured = snapshot.records.networks.get(network) or next(made, None)
    if configured and (attachment in cached or at_least(configured.version, "1.1.0")):
        return f"podwire gc {network}"
    if attachment.container_id and (configured or cached):
        ifname = f" -i {quote(attachment.ifname)}" if attachment.ifname else ""
        return f"podwire del {quote(network)} --container-id {quote(attachment.container_id)}{ifname}"
    return f"podwire gc {quote(network)} (its file is not in net.d: put it back first)"


@dataclass(frozen=True)
class _Finder:
    snapshot: Snapshot

    def reservations(self) -> Iterator[Leak]:
        for pool in self.snapshot.records.pools:
            for item in pool.reservations:
                if self.snapshot.is_gone(item):
                    fix = f"podwire ipam free {item.file.name} {quote(item.network)}"
                    if item.attachment in self.snapshot.cached_by_network.get(item.network, ()):
                        fix = fix_for(self.snapshot, item.network, item.attachment)  # which takes the rest away, too
                    yield Leak("reservation", f"address {item.file.name}", fix, item.network, item.attachment)

    def cached(self) -> Iterator[Leak]:
        for pod in self.snapshot.pods:
            if pod.state is State.GONE:
                what = f"cache entry of a namespace that is not there: {pod.netns}"
                yield Leak(
                    "cache", what, fix_for(self.snapshot, pod.network, pod.attachment), pod.network, pod.attachment
                )

    def veths(self) -> Iterator[Leak]:
        """Yields the veths on our bridges that are no attachment's, if they are named as plugins name a pod's.

        Of those nothing is told whose end is not seen, or is the host's own: a VLAN's gateway, a way to another bridge.
        """
        kernel, own = self.snapshot.kernel, self._networks_by_bridge
        known = {pod.host_interface for pod in self.snapshot.pods}
        for port in kernel.links:
            master = kernel.by_index.get(port.master)
            networks = own.get(master.name, ()) if master else ()
            if port.kind != "veth" or master is None or port.name in known or not POD_END.fullmatch(port.name):
                continue
            inside = kernel.namespace_behind(port)
            if not networks or not all(map(self._knows_veths, networks)) or inside is None or inside.links is None:
                continue
            other = next((own.name for own in inside.links.values() if own.index == port.lower), "?")
            where = f"its other end is {other} in {inside.path}, which no attachment knows"
            yield Leak("veth", f"{port.name} on {master.name}, {where}", _delete(port), networks[0])

    def rules(self) -> Iterator[Leak]:
        """Yields the rules of dead attachments, those of one owner and purpose together."""
        found: dict[tuple[str, ...], list[OwnedRule]] = {}
        for item in self.snapshot.rules.found:
            if self._is_gone(item.mark, item.network, item.container_id):
                owner = item.mark.hex(), item.network, item.container_id, item.ifname
                found.setdefault((item.what, item.backend, *owner), []).append(item)
        for items in found.values():
            first = items[0]
            about = ", ".join(sorted({item.about for item in items} - {""}))
            where = ", ".join(dict.fromkeys(item.where for item in items))
            what = f"{_NAMES[first.what]}{f' {about}' if about else ''} ({first.backend}: {where})"
            network, attachment = first.network, Attachment(first.container_id, first.ifname)
            if pods := self._by_mark.get(first.mark, []):  # rules may name less than the books
                network, attachment = pods[0].network, pods[0].attachment
            yield Leak(first.what, what, self._rule_fix(first.backend, network, attachment), network, attachment)

    def ifbs(self) -> Iterator[Leak]:
        for own in self.snapshot.kernel.links:
            named = bandwidth.owner_from_alias(own.alias)
            is_reference_s = not own.alias and bandwidth.NAME.fullmatch(own.name)
            if own.kind != "ifb" or not own.name.startswith(bandwidth.PREFIX) or not (named or is_reference_s):
                continue
            network = named.network if named else ""
            if self._is_gone((own.alias or own.name).encode(), network, named.container_id if named else ""):
                attachment = Attachment(named.container_id, named.ifname) if named else NO_ATTACHMENT
                fix = fix_for(self.snapshot, network, attachment) if named else _delete(own)
                yield Leak("ifb", f"interface {own.name}, which limits what a pod sends", fix, network, attachment)

    def backups(self) -> Iterator[Leak]:
        """Yields tuning's notes of what interfaces were like."""
        for data_dir, network, attachment in self.snapshot.records.backups:
            pods = self.snapshot.pods_of(network, attachment)
            if all(pod.leaked for pod in pods) and (pods or self._keeps_books(network)):
                what = f"tuning's backup in {data_dir}"
                yield Leak("backup", what, fix_for(self.snapshot, network, attachment), network, attachment)

    @cached_property
    def _by_mark(self) -> Mapping[bytes, list[Pod]]:
        found: dict[bytes, list[Pod]] = {}
        for pod in self.snapshot.pods:
            owner = Owner(pod.network, *pod.attachment)
            ifbs = (owner.alias.encode(), *(name.encode() for name in owner.names))
            for mark in (*rules.marks_of(pod.network, pod.attachment), *ifbs):
                found.setdefault(mark, []).append(pod)
        return found

    @cached_property
    def _kept(self) -> set[str]:
        """The networks of which somebody keeps records: the runtime's cache, or host-local's store."""
        pools = (pool.network for pool in self.snapshot.records.pools if pool.reservations or pool.last_reserved)
        return {item.network_name for item in self.snapshot.records.cached}.union(pools)

    def _keeps_books(self, network: str = "") -> bool:
        """Tells whether an attachment that nobody knows is none; without a network it may be of any."""
        return self.snapshot.records.is_cache_complete and (network in self._kept if network else bool(self._kept))

    def _is_gone(self, mark: bytes, network: str, container_id: str) -> bool:
        """Tells whether the owner of something is surely gone; without a mark it is known by its container."""
        if not mark and not container_id:
            return False
        pods = self._by_mark.get(mark, [])
        if not mark or not pods:
            same = (pod for pod in self.snapshot.pods if pod.attachment.container_id == container_id)
            pods = [pod for pod in same if network in ("", pod.network)] if container_id else []
        return all(pod.leaked for pod in pods) and (bool(pods) or self._keeps_books(network))

    def _knows_veths(self, network: str) -> bool:
        """Tells whether a network has no attachment that may live and whose veth was not found: an ADD under way.

        Nor one whose inside is not seen: any veth may be its.
        """
        own = [pod for pod in self.snapshot.pods if pod.network == network]
        lost = (pod for pod in own if pod.state is State.NO_CACHE and not pod.leaked)
        seen = all(pod.state not in (State.NOT_SEEN, State.UNKNOWN) for pod in own)
        return self._keeps_books(network) and seen and all(pod.host_interface for pod in lost)

    @cached_property
    def _networks_by_bridge(self) -> Mapping[str, list[str]]:
        """The networks of each bridge."""
        found: dict[str, list[str]] = {}
        cached = {item.network_name: item.network for item in self.snapshot.records.cached}
        for network, own in {**cached, **self.snapshot.records.networks}.items():
            for name in bridge_names(own):
                found.setdefault(name, []).append(network)
        return found

    def _rule_fix(self, backend: str, network: str, attachment: Attachment) -> str:
        if network:
            return fix_for(self.snapshot, network, attachment)
        program = "nft list ruleset" if backend == NFTABLES else "iptables-save"
        return f"delete it by hand, as it does not name its network: {program}"


def _delete(own: Link) -> str:
    return f"ip link delete {quote(own.name)}"
