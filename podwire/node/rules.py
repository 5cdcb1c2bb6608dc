"""The packet filter rules of this node's pods with their owners, of all backends and all plugins that create rules.

Each plugin reads its own rules; this module only collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from attachment.masquerade import backend as masquerade
from cni.conf import Attachment
from cni.errors import CniError
from kernel.netfilter import nft
from kernel.netfilter.nft import NftSocket
from kernel.netfilter.owned import HOST_PORT, OwnedRule
from plugins.firewall import rule_listing as firewall
from plugins.portmap import host_port_listing as portmap

_BY_NETLINK: Mapping[str, Callable[[NftSocket], list[OwnedRule]]] = {
    "masquerade rules": masquerade.list_owned_rules,
    "host ports": portmap.list_host_ports,
    "firewall rules": firewall.list_owned_rules,
}
_BY_PROGRAM: Mapping[str, Callable[[], list[OwnedRule]]] = {
    "masquerade rules": masquerade.list_legacy_owned_rules,
    "host ports": portmap.list_host_ports_legacy,
    "firewall rules": firewall.list_legacy_owned_rules,
}


@dataclass(frozen=True)
class Rules:
    """All rules that name their owner; `unseen` describes what could not be read."""

    owned: tuple[OwnedRule, ...] = ()
    unseen: tuple[str, ...] = ()

    @cached_property
    def _ports(self) -> Mapping[object, set[str]]:
        by_owner: dict[object, set[str]] = {}
        for item in self.owned:
            if item.what == HOST_PORT and item.subject:
                by_owner.setdefault(item.owner_key or item.container_id, set()).add(item.subject)
        return by_owner

    def published_ports(self, network: str, attachment: Attachment) -> set[str]:
        """Returns the host ports ("8080/tcp") of an attachment, found by its owner keys or container ID."""
        names = (*owner_keys(network, attachment), attachment.container_id)
        return {port for name in names for port in self._ports.get(name, ())}


def read_rules() -> Rules:
    """Reads all rules; what cannot be read is described in `unseen`."""
    owned: list[OwnedRule] = []
    unseen: list[str] = []
    try:
        with nft.open_socket() as socket:
            for what, by_netlink in _BY_NETLINK.items():
                try:
                    owned += by_netlink(socket)
                except CniError as error:
                    unseen.append(f"{what}: {error.msg}")
    except nft.UnavailableError:
        pass  # no netfilter, no rules
    except CniError as error:
        unseen.append(f"the packet filter's rules: {error.msg}")
    for what, by_program in _BY_PROGRAM.items():
        try:
            owned += by_program()
        except CniError as error:
            unseen.append(f"{what} of iptables-legacy: {error.msg}")
    return Rules(tuple(dict.fromkeys(owned)), tuple(unseen))


def owner_keys(network: str, attachment: Attachment) -> Iterable[bytes]:
    """Returns all owner keys that an attachment's rules may have."""
    for module in (masquerade, portmap, firewall):
        yield from module.owner_keys(network, attachment)
