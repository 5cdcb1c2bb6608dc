"""The choice between iptables and nftables, and what concerns both.

One rule: rules are made by one backend and removed from both, whichever the configuration names by then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from cni.address import Interface
from cni.conf import Attachment
from cni.errors import CniError, Code, all_of
from kernel import nft
from kernel.iptables import UnusableError
from kernel.masquerade import iptables, iptables_nft, nftables
from kernel.masquerade.names import chain_name
from kernel.masquerade.wanted import Masquerade

Step = Callable[[nft.NftSocket], None]


class _Backend(Protocol):
    """What both modules are."""

    def add(self, wanted: Masquerade) -> None: ...

    def check(self, wanted: Masquerade) -> None: ...

    def problem(self) -> str: ...


_BY_NAME: dict[str, _Backend] = {"iptables": iptables, "nftables": nftables}


def add(wanted: Masquerade, backend: str) -> None:
    """Makes the rules by `backend`; "" is iptables, or nftables where iptables cannot be used (reference).

    Raises CniError; nothing is taken back then, `delete` does that.
    """
    if backend:
        _BY_NAME[backend].add(wanted)
        return
    try:
        iptables.add(wanted)
    except UnusableError as error:
        try:
            nftables.add(wanted)
        except CniError as other:
            raise _neither(error, other) from other


def check(wanted: Masquerade, backend: str) -> None:
    """Checks that the rules are there; with "" for `backend` in either. Raises CniError(999)."""
    if backend:
        _BY_NAME[backend].check(wanted)
        return
    try:
        iptables.check(wanted)
    except CniError as error:
        try:
            nftables.check(wanted)
        except CniError:
            raise error from None


def delete(wanted: Masquerade, others: tuple[Interface, ...]) -> None:
    """Removes the attachment's rules wherever they are, as `deletions` and `delete_legacy` do; raises CniError."""
    all_of(partial(delete_legacy, wanted, others), partial(nft.each, deletions(wanted, others)))


def deletions(wanted: Masquerade, others: tuple[Interface, ...]) -> list[Step]:
    """Returns what removes the attachment's rules by netlink, for nft.each; absent is success, no program is run.

    Its addresses need not be known. `others` are those of the container's other interfaces, whose rules stay.
    """
    chain = chain_name(wanted.network, wanted.container_id)
    return [lambda socket: iptables_nft.delete(socket, chain, others), lambda socket: nftables.delete(socket, wanted)]


def delete_legacy(wanted: Masquerade, others: tuple[Interface, ...]) -> None:
    """Removes what iptables-legacy made, which takes its lock, one for the host; raises CniError(11), CniError."""
    iptables.delete_legacy(wanted, others)


def gc(network: str, valid: frozenset[Attachment]) -> list[Step]:
    """Returns what removes by netlink the rules of this network that belong to no attachment in `valid`."""
    kept = _chains(network, valid)
    return [lambda socket: iptables_nft.gc(socket, network, kept), lambda socket: nftables.gc(socket, network, valid)]


def gc_legacy(network: str, valid: frozenset[Attachment]) -> None:
    """Removes what iptables-legacy made of such rules; raises CniError."""
    iptables.gc_legacy(network, _chains(network, valid))


def problem(backend: str) -> str:
    """Tells what keeps `backend` ("" for either) from working, "" when it works."""
    problems = {name: module.problem() for name, module in _BY_NAME.items() if backend in ("", name)}
    return "; ".join(f"{name}: {problem}" for name, problem in problems.items()) if all(problems.values()) else ""


def _chains(network: str, valid: frozenset[Attachment]) -> set[str]:
    return {chain_name(network, attachment.container_id) for attachment in valid}


def _neither(iptables_error: CniError, nftables_error: CniError) -> CniError:
    return CniError(
        Code.INTERNAL,
        f"neither iptables nor nftables can be used: {iptables_error.msg}; {nftables_error.msg}",
        'install iptables or a kernel with nftables, or set "ipMasq" to false',
    )
