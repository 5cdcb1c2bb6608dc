"""The choice between iptables and nftables for a plugin's rules.

This module does not store which backend ADD used, so DEL and GC remove rules from both.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from cni.errors import CniError, internal
from kernel.netfilter.iptables_program import UnusableError
from process import record

Desired_contra = TypeVar("Desired_contra", contravariant=True)


class Backend(Protocol[Desired_contra]):
    """The interface of a plugin's backend module."""

    def add(self, desired: Desired_contra) -> None:
        """Creates the rules."""

    def check(self, desired: Desired_contra) -> None:
        """Raises CniError(999) for a missing rule."""

    def get_problem(self) -> str:
        """Returns why this backend cannot work, "" if it can."""
        raise NotImplementedError


class Backends(Generic[Desired_contra]):
    """Both backends of one plugin; `hint` is the fix to print if neither works.

    In all methods `name` is "iptables", "nftables" or "": then iptables, or nftables if iptables cannot be used, as in
    the reference plugins.
    """

    def __init__(self, iptables: Backend[Desired_contra], nftables: Backend[Desired_contra], hint: str) -> None:
        self._by_name = {"iptables": iptables, "nftables": nftables}
        self._hint = hint

    def add(self, desired: Desired_contra, name: str) -> None:
        """Creates the rules; raises CniError, and the caller rolls back with DEL's steps."""
        if name:
            self._add(desired, name)
            return
        try:
            self._add(desired, "iptables")
        except UnusableError as error:
            try:
                self._add(desired, "nftables")
            except CniError as other:
                msg = f"neither iptables nor nftables can be used: {error.msg}; {other.msg}"
                raise internal(msg, self._hint) from other

    def _add(self, desired: Desired_contra, name: str) -> None:
        with record.timed_step(f"rules by {name}"):
            self._by_name[name].add(desired)

    def check(self, desired: Desired_contra, name: str) -> None:
        """Checks that the rules exist, with "" in either backend; raises CniError(999)."""
        if name:
            self._by_name[name].check(desired)
            return
        try:
            self._by_name["iptables"].check(desired)
        except CniError as error:
            try:
                self._by_name["nftables"].check(desired)
            except CniError:
                raise error from None

    def get_problem(self, name: str) -> str:
        """Returns why the backend (with "" both of them) cannot work, "" if it can."""
        problems = []
        for backend_name in (name,) if name else self._by_name:
            problem = self._by_name[backend_name].get_problem()
            if not problem:  # the other one need not work
                return ""
            problems.append(f"{backend_name}: {problem}")
        return "; ".join(problems)
