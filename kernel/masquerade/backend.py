"""The choice between iptables and nftables, and what concerns both.

One rule: rules are made by one backend and removed from both, whichever the configuration names by then.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from cni.address import Interface
from cni.conf import Attachment
from cni.errors import CniError, Code, all_of
from kernel.iptables import UnusableError
from kernel.masquerade import iptables, nftables
from kernel.masquerade.wanted import Masquerade


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


def delete(wanted: Masquerade, others: tuple[Interface, ...], *, asked: bool = True) -> None:
    """Removes the attachment's rules wherever they are; absent is success. Its addresses need not be known.

    `others` are the addresses of the container's other interfaces, whose rules stay. When nobody `asked` for rules
    only the kernel is asked whether there are any, and no program run for it. Raises CniError.
    """
    # In this order: after a deletion by nftables every other use of netfilter waits for the kernel (kernel.nft).
    all_of(partial(iptables.delete, wanted, others=others, asked=asked), partial(nftables.delete, wanted))


def gc(network: str, valid: frozenset[Attachment]) -> None:
    """Removes the rules of this network that belong to no attachment in `valid`. Raises CniError."""
    all_of(partial(nftables.gc, network, valid), partial(iptables.gc, network, valid))


def problem(backend: str) -> str:
    """Tells what keeps `backend` ("" for either) from working, "" when it works."""
    problems = {name: module.problem() for name, module in _BY_NAME.items() if backend in ("", name)}
    return "; ".join(f"{name}: {problem}" for name, problem in problems.items()) if all(problems.values()) else ""


def _neither(iptables_error: CniError, nftables_error: CniError) -> CniError:
    return CniError(
        Code.INTERNAL,
        f"neither iptables nor nftables can be used: {iptables_error.msg}; {nftables_error.msg}",
        'install iptables or a kernel with nftables, or set "ipMasq" to false',
    )
