"""The choice between iptables and nftables for a plugin's rules.

One rule: rules are made by one backend; which one made them is not remembered, so DEL and GC look into both.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from cni.errors import CniError, Code
from kernel.netfilter.iptables import UnusableError
from process import record

Wanted_contra = TypeVar("Wanted_contra", contravariant=True)


class Backend(Protocol[Wanted_contra]):
    """What a module that makes rules can do, with a value that says which."""

    def add(self, wanted: Wanted_contra) -> None:
        """Makes the rules."""

    def check(self, wanted: Wanted_contra) -> None:
        """Raises CniError(999) for what is missing."""

    def get_problem(self) -> str:
        """Tells what keeps this backend from working, "" when it works."""
        raise NotImplementedError


class Backends(Generic[Wanted_contra]):
    """Both backends of one plugin; `cure` says what to do where neither works.

    Everywhere `name` is "iptables", "nftables", or "" for iptables, or nftables where iptables cannot be used
    (reference).
    """

    def __init__(self, iptables: Backend[Wanted_contra], nftables: Backend[Wanted_contra], cure: str) -> None:
        self._by_name = {"iptables": iptables, "nftables": nftables}
        self._cure = cure

    def add(self, wanted: Wanted_contra, name: str) -> None:
        """Makes the rules; raises CniError, and nothing is taken back then: DEL's steps do that."""
        if name:
            self._add(wanted, name)
            return
        try:
            self._add(wanted, "iptables")
        except UnusableError as error:
            try:
                self._add(wanted, "nftables")
            except CniError as other:
                what = f"neither iptables nor nftables can be used: {error.msg}; {other.msg}"
                raise CniError(Code.INTERNAL, what, self._cure) from other

    def _add(self, wanted: Wanted_contra, name: str) -> None:
        with record.timed_step(f"rules by {name}"):
            self._by_name[name].add(wanted)

    def check(self, wanted: Wanted_contra, name: str) -> None:
        """Checks that the rules are there, with "" in either backend; raises CniError(999)."""
        if name:
            self._by_name[name].check(wanted)
            return
        try:
            self._by_name["iptables"].check(wanted)
        except CniError as error:
            try:
                self._by_name["nftables"].check(wanted)
            except CniError:
                raise error from None

    def get_problem(self, name: str) -> str:
        """Tells what keeps the backend (with "" both of them) from working, "" when it works."""
        problems = {own: backend.get_problem() for own, backend in self._by_name.items() if name in ("", own)}
        return "; ".join(f"{own}: {problem}" for own, problem in problems.items()) if all(problems.values()) else ""
