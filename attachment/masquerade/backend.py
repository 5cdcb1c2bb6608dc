"""Both backends of masquerading, and the steps that concern both.

One rule: ADD uses one backend; DEL and GC remove rules from both, whatever the configuration names by then.
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


def delete(spec: Masquerade, others: tuple[Interface, ...]) -> None:
    """Removes the attachment's rules from both backends, as `deletions` and `delete_legacy` do; raises CniError."""
    run_all(partial(delete_legacy, spec, others), partial(nft.run_steps, deletion_steps(spec, others)))


def deletion_steps(spec: Masquerade, others: tuple[Interface, ...]) -> list[Step]:
    """Returns what removes the attachment's rules by netlink, for nft.each; absent is success, no program is run.

    Its addresses need not be known. `others` are those of the container's other interfaces, whose rules stay.
    """
    chain = chain_name(spec.network, spec.container_id)
    return [
        lambda socket: iptables_nft.delete(socket, CHAINS, chain, others),
        lambda socket: nftables.delete(socket, spec),
    ]


def delete_legacy(spec: Masquerade, others: tuple[Interface, ...]) -> None:
    """Removes the attachment's rules of iptables-legacy, under its host-wide lock; raises CniError(11), CniError."""
    iptables.delete_legacy(spec, others)


def gc_steps(network: str, valid: frozenset[Attachment]) -> list[Step]:
    """Returns the steps that remove, by netlink, this network's rules that belong to no attachment in `valid`."""
    kept = _chains(network, valid)
    return [
        lambda socket: iptables_nft.gc(socket, CHAINS, network, kept),
        lambda socket: nftables.gc(socket, network, valid),
    ]


def gc_legacy(network: str, valid: frozenset[Attachment]) -> None:
    """Removes such rules of iptables-legacy; raises CniError."""
    iptables.gc_legacy(network, _chains(network, valid))


def list_owned_rules(socket: nft.NftSocket) -> list[OwnedRule]:
    """Lists the owners of the rules that netlink can read; raises KernelError."""
    return [
        owned for owned, _ in iptables_nft.list_owned_rules(socket, CHAINS, MASQUERADE)
    ] + nftables.list_owned_rules(socket)


def list_legacy_owned_rules() -> list[OwnedRule]:
    """Lists the owners of iptables-legacy's rules; raises CniError."""
    return [owned for owned, _ in iptables_chains.list_legacy_owned_rules([CHAINS], MASQUERADE)]


def marks_of(network: str, attachment: Attachment) -> tuple[bytes, ...]:
    """Returns the marks that an attachment's rules may have."""
    return chain_name(network, attachment.container_id).encode(), nftables.mark_of(network, *attachment)


def _chains(network: str, valid: frozenset[Attachment]) -> set[str]:
    return {chain_name(network, attachment.container_id) for attachment in valid}
