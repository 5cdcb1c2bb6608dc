"""Both backends of masquerading, and what concerns both.

One rule: rules are made by one backend and removed from both, whichever the configuration names by then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attachment.masquerade import iptables, nftables
from attachment.masquerade.names import CHAINS, chain_name
from attachment.masquerade.spec import Masquerade
from cni.address import Interface
from cni.conf import Attachment
from cni.errors import run_all
from kernel.netfilter import iptables_chains, iptables_nft, nft
from kernel.netfilter.backends import Backends
from kernel.netfilter.owned import MASQUERADE, OwnedRule

Step = Callable[[nft.NftSocket], None]


BACKENDS: Backends[Masquerade] = Backends(
    iptables, nftables, 'install iptables or a kernel with nftables, or set "ipMasq" to false'
)


def delete(wanted: Masquerade, others: tuple[Interface, ...]) -> None:
    """Removes the attachment's rules wherever they are, as `deletions` and `delete_legacy` do; raises CniError."""
    run_all(partial(delete_legacy, wanted, others), partial(nft.run_steps, deletion_steps(wanted, others)))


def deletion_steps(wanted: Masquerade, others: tuple[Interface, ...]) -> list[Step]:
    """Returns what removes the attachment's rules by netlink, for nft.each; absent is success, no program is run.

    Its addresses need not be known. `others` are those of the container's other interfaces, whose rules stay.
    """
    chain = chain_name(wanted.network, wanted.container_id)
    return [
        lambda socket: iptables_nft.delete(socket, CHAINS, chain, others),
        lambda socket: nftables.delete(socket, wanted),
    ]


def delete_legacy(wanted: Masquerade, others: tuple[Interface, ...]) -> None:
    """Removes what iptables-legacy made, which takes its lock, one for the host; raises CniError(11), CniError."""
    iptables.delete_legacy(wanted, others)


def gc_steps(network: str, valid: frozenset[Attachment]) -> list[Step]:
    """Returns what removes by netlink the rules of this network that belong to no attachment in `valid`."""
    kept = _chains(network, valid)
    return [
        lambda socket: iptables_nft.gc(socket, CHAINS, network, kept),
        lambda socket: nftables.gc(socket, network, valid),
    ]


def gc_legacy(network: str, valid: frozenset[Attachment]) -> None:
    """Removes what iptables-legacy made of such rules; raises CniError."""
    iptables.gc_legacy(network, _chains(network, valid))


def list_owned_rules(socket: nft.NftSocket) -> list[OwnedRule]:
    """Returns whose the rules are that netlink tells of; raises KernelError."""
    return [
        found for found, _ in iptables_nft.list_owned_rules(socket, CHAINS, MASQUERADE)
    ] + nftables.list_owned_rules(socket)


def list_legacy_owned_rules() -> list[OwnedRule]:
    """Returns whose the rules are that iptables-legacy made; raises CniError."""
    return [found for found, _ in iptables_chains.list_legacy_owned_rules([CHAINS], MASQUERADE)]


def marks_of(network: str, attachment: Attachment) -> tuple[bytes, ...]:
    """Returns the marks that an attachment's rules may have."""
    return chain_name(network, attachment.container_id).encode(), nftables.mark_of(network, *attachment)


def _chains(network: str, valid: frozenset[Attachment]) -> set[str]:
    return {chain_name(network, attachment.container_id) for attachment in valid}
