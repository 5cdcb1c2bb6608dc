"""The node as the checks read it: files, the cache, links, addresses, chains, each read once, when first used.

Nothing here changes anything, and a property that cannot be read raises its error when it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from shlex import quote

from attachment.policy.table import TABLE as POLICIES
from attachment.presence import Presence
from cni import conf as cni_conf
from cni import gojson, versions
from cni.address import Network as Subnet
from cni.conf import Attachment
from cni.errors import CniError
from cni.skel import Plugin
from ipam.host_local import conf as host_local
from ipam.host_local.ranges import RangeSet
from kernel.fib import UNICAST, FibRoute
from kernel.link import Link
from kernel.netfilter.ruleset import Ruleset, read_ruleset
from kernel.route import TABLE_MAIN
from podwire import attachments, flannel, networks, runtimes
from podwire.attachments import CachedAttachment
from podwire.checking import Checker
from podwire.doctor.shell_command import ShellCommand
from podwire.facts.network import NetworkFacts
from podwire.networks import Network, NetworkFile
from podwire.node.inspection import read_snapshot
from podwire.node.legacy_filter import with_legacy
from podwire.node.records import Directories
from podwire.node.snapshot import Snapshot
from podwire.runtimes import Runtime
from process import files

_MOST_BYTES = 1 << 20
_PORT_FLAGS = {"hairpinMode": "hairpin", "portIsolation": "isolated"}


@dataclass(frozen=True)
class InterfaceConf:
    """The configuration of a network's interface plugin: `kind` is "bridge" or "ptp", `bridge` "" for "ptp".

    `bridge` is the interface's name, also if the configuration has an altname.
    `routed`: the host is the pods' gateway. `sets` are host-local's range sets, in the stores of `data_dir`.
    `port_flags` are set on the bridge's ports, as `ip link` names them. `vlans`: ports have VLANs.
    `is_container_veth_down`: the configuration leaves the pods' interfaces down. `masquerades`: `ipMasq` is set.
    `filters_bridged`: ADD sends bridged frames through iptables.
    """

    network: Network
    kind: str
    bridge: str
    routed: bool
    sets: tuple[RangeSet, ...] = ()
    data_dir: str = ""
    port_flags: tuple[str, ...] = ()
    vlans: bool = False
    is_container_veth_down: bool = False
    masquerades: bool = False
    filters_bridged: bool = False

    @cached_property
    def subnets(self) -> tuple[Subnet, ...]:
        """The subnets of its ranges."""
        return tuple(dict.fromkeys(item.subnet for range_set in self.sets for item in range_set.ranges))

    @property
    def versions(self) -> frozenset[int]:
        """The IP versions of its ranges."""
        return frozenset(range_set.version for range_set in self.sets)


class CheckedNode(NetworkFacts):
    """A node. `network` limits the checks to one network, "" means all.

    `options` are the command-line options that named other directories than the default: printed commands repeat them.
    """

    def __init__(
        self,
        plugins: Mapping[str, Plugin],
        env: Mapping[str, str],
        directories: Directories,
        bin_dirs: tuple[str, ...],
        network: str = "",
        options: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__()
        self.plugins = plugins
        self.env = env
        self.directories = directories
        self.conf_dir = directories.conf_dir
        self.layers = directories.layers
        self.bin_dirs = bin_dirs
        self.network = network
        self.checker = Checker(plugins, env, bin_dirs)
        self._options = tuple(options)

    def command(self, name: str, network: str) -> ShellCommand:
        """Returns a command line of this tool for a network, for use as a fix."""
        options = [f" {option} {quote(value)}" for option, value in self._options if value]
        return ShellCommand(f"podwire {name} {quote(network)}{''.join(options)}")

    @property
    def install_dir(self) -> str:
        """The directory to install podwire into: a runtime's if it is one of `bin_dirs`, else the first of these."""
        usable = [one for one in self.runtimes if one.bin_dirs and not one.without_cni]
        directories = (one.install_dir(self.plugins) for one in usable)
        return next((path for path in directories if path in self.bin_dirs), "".join(self.bin_dirs[:1]))

    @cached_property
    def runtimes(self) -> tuple[Runtime, ...]:
        """The installed runtimes."""
        return runtimes.list_installed(self.env)

    @cached_property
    def files(self) -> tuple[NetworkFile, ...]:
        """The files of net.d; raises CniError(5)."""
        return networks.read_directory(self.conf_dir)

    @cached_property
    def networks(self) -> tuple[Network, ...]:
        """The networks to check, sorted by path: those in net.d, of several with one name only the one that pods get.

        Those of NetworkAttachmentDefinitions are known by Multus' running attachments: two Kubernetes namespaces may
        have definitions with one name. A network that was moved to another bridge or master after an ADD is here twice.
        """
        configured = networks.by_name(self.files)
        further = {
            (one.network_name, one.network.segment): replace(one.network, path=_describe_former(one))
            for one in self.cached
            if one.network and one.may_be_running and (one.layer.source or one.network_name in configured)
        }
        for network in configured.values():
            further.pop((network.name, network.segment), None)
        known = (*configured.values(), *further.values())
        selected = (network for network in known if self.network in ("", network.name))
        return tuple(sorted(selected, key=lambda network: network.path))

    @cached_property
    def configured_names(self) -> frozenset[str]:
        """The names of the networks that net.d defines."""
        return frozenset(networks.by_name(self.files))

    def require_network(self) -> None:
        """Raises CniError(7) if the network is neither in net.d nor in the cache; an empty net.d is a finding."""
        if self.network and self.configured_names and not (self.networks or self.known):
            raise networks.unknown_network(self.network, self.conf_dir, self.files)

    @cached_property
    def interfaces(self) -> tuple[InterfaceConf, ...]:
        """The interfaces of `networks`, without those whose configuration is invalid (STATUS reports these)."""
        interfaces = []
        for network in self.networks:
            for plugin in network.plugins:
                with suppress(CniError):
                    if item := _interface(network, plugin):
                        bridge = self.link(item.bridge) if item.bridge else None
                        interfaces.append(replace(item, bridge=bridge.name) if bridge else item)
        return tuple(interfaces)

    @cached_property
    def cached(self) -> list[CachedAttachment]:
        """The attachments in the caches, of all networks."""
        return attachments.list_cached(self.layers)

    @cached_property
    def known(self) -> tuple[CachedAttachment, ...]:
        """The attachments of `networks` in the cache, without the pods' loopback if no file configures it.

        Raises CniError(5) if the cache cannot be read.
        """
        attachments.require_caches(self.layers)
        cached = (one for one in self.cached if self.network in ("", one.network_name))
        names = {self.network, *self.configured_names}
        return tuple(one for one in cached if one.network_name in names or not one.is_loopback)

    def presence(self, one: CachedAttachment) -> Presence:
        """Returns whether an attachment's namespace exists."""
        return self._presences.get(one.path, one.presence)

    @cached_property
    def _presences(self) -> Mapping[str, Presence]:
        """The presences, corrected by the kernel's interfaces, which are read only if a path is missing."""
        if all(one.presence is Presence.HERE for one in self.known if one.netns):
            return {}
        return self.snapshot.presences.by_file

    @cached_property
    def snapshot(self) -> Snapshot:
        """The snapshot of cache, stores and kernel, of all networks, that `podwire gc` and `ipam verify` use.

        It enters every namespace, which is slow: use it only if something looks stale by the cache alone.
        """
        return read_snapshot(self.directories, rules=False)

    @cached_property
    def running(self) -> tuple[CachedAttachment, ...]:
        """The attachments that may be running."""
        return tuple(one for one in self.known if self.presence(one) is not Presence.GONE)

    @cached_property
    def cached_owners(self) -> frozenset[tuple[str, Attachment]]:
        """The attachments in the cache that may be running, as (network, attachment)."""
        return frozenset((one.network_name, one.attachment) for one in self.running)

    @cached_property
    def owners_kept_by_gc(self) -> frozenset[tuple[str, Attachment]]:
        """The attachments that `podwire gc` keeps: also those without a cache entry, or with an unreadable one."""
        running = {(pod.network, pod.attachment) for pod in self.snapshot.pods if not pod.leaked}
        names = {one.network_name for one in self.known}
        damaged = {
            (name, attachment)
            for name in names
            for path in self.unread
            for attachment in attachments.parse_file_name(path, name)
        }
        return self.cached_owners | running | damaged

    @cached_property
    def unread(self) -> tuple[str, ...]:
        """The files of the cache that cannot be read as attachments."""
        return tuple(attachments.list_unreadable(self.layers, self.cached, self.network))

    def unseen(self, network: str) -> tuple[CachedAttachment, ...]:
        """Returns a network's attachments that may be running, but whose namespaces are missing at their paths."""
        running = (one for one in self.running if one.network_name == network and one.netns)
        return tuple(one for one in running if self.presence(one) is not Presence.HERE)

    def list_attached(self, item: InterfaceConf) -> list[CachedAttachment]:
        """Returns the attachments to a network that may be running, whose ADD had this bridge, master and VLAN."""
        is_configured = item.network.name in self.configured_names
        attached = (one for one in self.running if one.network_name == item.network.name)
        return [
            one for one in attached if (one.network.segment == item.network.segment if one.network else is_configured)
        ]

    def are_separate(self, one: Network, other: Network) -> bool:
        """Returns whether two networks of Multus may have equal addresses: nothing on the host connects them."""
        names = {one.name, other.name}
        is_routed = any(item.routed for item in self.interfaces if item.network.name in names)
        return not (is_routed or names & self.configured_names or one.segment == other.segment)

    def has_pods(self, network: str) -> bool:
        """Returns whether an attachment of the network may be running."""
        return any(one.network_name == network for one in self.running)

    @cached_property
    def uplinks(self) -> tuple[Link, ...]:
        """The interfaces of the default routes."""
        defaults = [one for version in (4, 6) for one in self.fib.list_defaults(version)]
        return tuple(self.links_at(dict.fromkeys(index for one in defaults for index, _ in one.hops)))

    @cached_property
    def used_uplinks(self) -> tuple[Link, ...]:
        """The interfaces of the default routes in use: those in table main with the lowest metric, per IP version.

        Not those through pods' interfaces, which a DHCP client of the host may have created.
        """
        of_pods = {each.index for each in self.links if each.name in self.pod_interfaces} if self.uplinks else set()
        best: list[FibRoute] = []
        for version in (4, 6):
            defaults = [
                one
                for one in self.fib.list_defaults(version)
                if one.table == TABLE_MAIN and one.kind == UNICAST and one.ifindex not in of_pods
            ]
            best += [one for one in defaults if one.metric == defaults[0].metric]
        return tuple(self.links_at(dict.fromkeys(index for one in best for index, _ in one.hops)))

    @cached_property
    def pod_interfaces(self) -> frozenset[str]:
        """The names of the running pods' host veths."""
        veths = {each.name for each in self.links if each.kind == "veth"}
        return frozenset(veths.intersection(name for one in self.running for name in one.host_interfaces))

    @cached_property
    def ruleset(self) -> Ruleset:
        """The rules of the packet filter, of nftables and of both variants of iptables; raises CniError.

        Without those of network policies: what they drop is meant, and must not hide what another rule does.
        """
        ruleset = with_legacy(read_ruleset())
        others = (one for one in ruleset.chains if (one.family, one.table) != (POLICIES.family, POLICIES.name))
        return replace(ruleset, chains=tuple(others))


def _describe_former(one: CachedAttachment) -> str:
    """Returns the place of the definition that an attachment has and net.d does not."""
    if one.layer.source:
        return f"NetworkAttachmentDefinition {one.network_name}"
    return f"{one.network_name} before its file in net.d was changed"


def read_text(path: str) -> str:
    """Returns a file's text, "" if it does not exist; raises OSError if it cannot be read."""
    try:
        return files.read(path, _MOST_BYTES).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ProcessLookupError, ValueError):
        return ""


def find_disk_problem(directory: str) -> tuple[str, str] | None:
    """Returns what keeps programs from creating files in a directory, and its fix; None if its file system is fine."""
    about = os.statvfs(directory)
    if about.f_flag & os.ST_RDONLY:
        return "it is on a read-only file system", ShellCommand(f"mount -o remount,rw {quote(_mount_point(directory))}")
    if about.f_files and not about.f_favail:
        return "its file system has no free inodes", f"delete some files: df -i {directory}"
    if about.f_blocks and not about.f_bavail:
        return "its file system is full", f"free some space: df {directory}"
    return None


def _mount_point(directory: str) -> str:
    """Returns the mount point that a directory is on."""
    while not os.path.ismount(directory) and directory not in ("/", "."):
        directory = os.path.dirname(directory)
    return directory


def _interface(network: Network, listed: Mapping[str, object]) -> InterfaceConf | None:
    plugin = flannel.resolve_delegate(listed)
    kind = str(plugin["type"])
    if kind not in ("bridge", "ptp"):
        return None
    version = network.version if network.version in versions.SUPPORTED else versions.CURRENT
    net_conf = cni_conf.parse(gojson.dumps({**network.build_config(plugin), "cniVersion": version}).encode())
    fields = net_conf.fields
    is_local = net_conf.ipam_type == "host-local"
    gateway = fields.boolean("isGateway") or fields.boolean("isDefaultGateway")
    return InterfaceConf(
        network,
        kind,
        fields.string("bridge", "cni0") if kind == "bridge" else "",
        bool(net_conf.ipam_type) and (kind == "ptp" or gateway),
        host_local.range_sets(net_conf) if is_local else (),
        host_local.data_dir(net_conf) if is_local else "",
        tuple(flag for key, flag in _PORT_FLAGS.items() if fields.boolean(key)),
        fields.has("vlan") or fields.has("vlanTrunk"),
        fields.boolean("disableContainerInterface"),
        plugin.get("ipMasq") is True,
        fields.boolean("bridgeNetfilter"),
    )
