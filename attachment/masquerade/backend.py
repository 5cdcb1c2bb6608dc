"""Both backends of masquerading, and the steps of DEL and GC, which use both.

This module removes rules from both backends, since the configuration may have changed since ADD, which uses one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attachment.masquerade import iptables, nftables
from attachment.masquerade.names import MASQUERADE_CHAINS, chain_name
from attachment.masquerade.spec import Masquerade
from cni.address import Cidr
from cni.conf import Attachment
from cni.errors import run_all
from kernel.netfilter import iptables_chains, iptables_nft, nft
from kernel.netfilter.backends import Backends
from kernel.netfilter.owned import MASQUERADE, OwnedRule

Step = Callable[[nft.NftSocket], None]


BACKENDS: Backends[Masquerade] = Backends(
    iptables, nftables, 'install iptables or a kernel with nftables, or set "ipMasq" to false'
)


def delete(spec: Masquerade, other_addresses: tuple[Cidr, ...]) -> None:
    """Deletes the attachment's rules in both backends, as `deletion_steps` and `delete_legacy` do; raises CniError."""
    run_all(
        partial(delete_legacy, spec, other_addresses), partial(nft.run_steps, deletion_steps(spec, other_addresses))
    )


def deletion_steps(spec: Masquerade, other_addresses: tuple[Cidr, ...]) -> list[Step]:
    """Returns the steps that delete the attachment's rules over netlink, for nft.run_steps; absence is success.

    They run no program and do not need the attachment's addresses. `other_addresses` are those of the container's
    other interfaces, whose rules stay.
    """
    chain = chain_name(spec.network, spec.container_id)
    return [
        lambda socket: iptables_nft.delete(socket, MASQUERADE_CHAINS, chain, other_addresses),
        lambda socket: nftables.delete(socket, spec),
    ]


def delete_legacy(spec: Masquerade, other_addresses: tuple[Cidr, ...]) -> None:
    """Deletes the attachment's rules of iptables-legacy, under its host-wide lock; raises CniError(11), CniError."""
    iptables.delete_legacy(spec, other_addresses)


def gc_steps(network: str, valid: frozenset[Attachment]) -> list[Step]:
    """Returns the steps that delete, over netlink, the network's rules of attachments that are not in `valid`."""
    kept = _chains(network, valid)
    return [
        lambda socket: iptables_nft.gc(socket, MASQUERADE_CHAINS, network, kept),
        lambda socket: nftables.gc(socket, network, valid),
    ]


def gc_legacy(network: str, valid: frozenset[Attachment]) -> None:
    """Deletes the same rules of iptables-legacy; raises CniError."""
    iptables_chains.gc_legacy([MASQUERADE_CHAINS], network, _chains(network, valid))


def list_owned_rules(socket: nft.NftSocket) -> list[OwnedRule]:
    """Lists the owners of the rules that netlink can read; raises KernelError."""
    return [
        owned for owned, _ in iptables_nft.list_owned_rules(socket, MASQUERADE_CHAINS, MASQUERADE)
    ] + nftables.list_owned_rules(socket)


def list_legacy_owned_rules() -> list[OwnedRule]:
    """Lists the owners of iptables-legacy's rules; raises CniError."""
    return [owned for owned, _ in iptables_chains.list_legacy_owned_rules([MASQUERADE_CHAINS], MASQUERADE)]


def owner_keys(network: str, attachment: Attachment) -> tuple[bytes, ...]:
    """Returns the owner keys that an attachment's rules may have, one for each backend."""
    return chain_name(network, attachment.container_id).encode(), nftables.owner_key(network, *attachment)


def _chains(network: str, valid: frozenset[Attachment]) -> set[str]:
    return {chain_name(network, attachment.container_id) for attachment in valid}
