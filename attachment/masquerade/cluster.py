"""The cluster's networks, to which pods with `nonMasqueradeCluster` keep their address: podwire-agent keeps them here.

The rules of a pod refer to sets (nftables) and to the chain PODWIRE-CLUSTER (iptables), so that no pod's rule changes
with a node. This module keeps the content of both equal to the cluster's networks; each change is one transaction, and
no packet sees a state between. Plugins do not use it.

Other programs can change the packet filter at any time: `repair` finds that, and chains that an ADD has created since.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Self

from attachment.masquerade import cluster_netlink
from attachment.masquerade.cluster_legacy import LegacyChains
from attachment.masquerade.cluster_netlink import DELETIONS_MAX, Places
from attachment.masquerade.collapsed import Collapsed
from attachment.masquerade.names import CLUSTER_CHAIN
from cni.address import Address, Network
from cni.errors import run_all
from cni.prefix_set import network_of, number_of
from kernel.errors import KernelError
from kernel.netfilter import iptables, nft
from kernel.netfilter.iptables_chains import TABLE
from kernel.netfilter.iptables_program import RefusedError
from kernel.netfilter.iptables_rule import IptablesChange

Networks = frozenset[Network]

_VERSIONS = (4, 6)
_DIFFERS = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.EBUSY)  # the state is not that of the last change


class ClusterNetworks:
    """Keeps the networks in all sets and chains of the current network namespace. A context manager, not thread-safe.

    `create` lists the backends ("iptables", "nftables") whose sets and chains are created if they are missing, before
    the first pod needs them; of the other backends only existing ones are filled. Raises KernelError.
    """

    def __init__(self, create: Collection[str] = ("nftables",)) -> None:
        self._create = frozenset(create)
        self._socket = nft.open_socket()
        self._desired: dict[int, Collapsed] | None = None  # by IP version
        self._is_applied = False  # whether the last change succeeded
        self._generation = 0  # of nftables after that change, 0 if others may have changed something before it
        self._places = Places()
        self._legacy = LegacyChains()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket; sets and chains stay as they are."""
        self._socket.garbage = False  # closing may wait for the kernel; a long-running program need not avoid that
        self._socket.close()

    def set_networks(self, networks: Iterable[Network | Address]) -> int:
        """Sets the networks, collapsed; returns the number of elements and rules that it changed.

        The first call and one after a failure compare the whole state; others send only the difference to the last
        call. Raises CniError after doing as much as possible.
        """
        known, self._desired = self._desired, {version: Collapsed(version) for version in _VERSIONS}
        added, _ = _change(self._desired, networks, ())
        if known is None:
            return self._compare(self._desired)
        before = _networks(known)
        return self._update(self._desired, added - before, before - added)

    def change_networks(self, added: Iterable[Network | Address], removed: Iterable[Network | Address]) -> int:
        """Adds and removes networks after `set_networks`, in time that depends on their number.

        Returns the same number as `set_networks`. A network that was added twice is there until it is removed twice.
        """
        assert self._desired is not None
        return self._update(self._desired, *_change(self._desired, added, removed))

    def _update(self, desired: Mapping[int, Collapsed], added: Networks, removed: Networks) -> int:
        """Sends a difference to the last state, or compares the whole state if that is not known."""
        if self._is_applied and not (added or removed):
            return 0
        if not self._is_applied or len(removed) > DELETIONS_MAX:
            self._generation = 0
            return self._compare(desired)
        self._is_applied = False
        try:
            number = self._apply(added, removed)
        except KernelError as error:
            if error.errno not in _DIFFERS:
                raise
            return self._compare(desired)
        except RefusedError:
            return self._compare(desired)
        self._is_applied = True
        return number

    def repair(self) -> int:
        """Restores what other programs changed, and fills chains that an ADD has created; returns as `set_networks`.

        Call it periodically: it costs one netlink request if nothing in nftables has changed since the last call,
        otherwise it compares the whole state. Runs two programs if iptables-legacy has a table `nat`. Does nothing
        before `set_networks`. Raises CniError.
        """
        return self._compare(self._desired) if self._desired is not None else 0

    def _apply(self, added: Networks, removed: Networks) -> int:
        """Sends a difference; raises KernelError, RefusedError and other CniErrors."""

        def send_difference(generation: int) -> int:
            number = cluster_netlink.change(self._socket, self._places, added, removed, generation)
            is_known = generation and generation == self._generation
            self._generation = generation + bool(number) if is_known else 0
            return number

        return nft.retry_with_generation(self._socket, send_difference) + self._legacy.change(added, removed)

    def _compare(self, desired: Mapping[int, Collapsed]) -> int:
        """Makes the whole state equal `desired`; raises CniError after doing as much as possible."""
        known = self._generation if self._is_applied else 0
        self._is_applied = False
        changed: list[int] = []
        networks = cache(partial(_networks, desired))  # takes 40 ms for 20,000, often for nothing

        def compare_in_nftables(generation: int) -> None:
            if generation and generation == known:
                return
            result = cluster_netlink.compare(self._socket, networks(), generation, create="nftables" in self._create)
            self._places = result.places
            self._generation = generation + result.is_changed if generation else 0
            changed.append(result.number)

        versions = {each for each in _VERSIONS if desired[each].networks} if "iptables" in self._create else set()
        run_all(
            partial(_create_chains, versions),
            partial(nft.retry_with_generation, self._socket, compare_in_nftables),
            lambda: changed.append(self._legacy.compare(networks, versions - self._places.chains)),
        )
        self._is_applied = True
        return sum(changed)


def list_networks() -> dict[str, Networks]:
    """Lists the networks of each existing set and chain by its name, without iptables-legacy's; raises KernelError."""
    with nft.open_socket() as socket:
        return cluster_netlink.list_networks(socket)


def remove() -> list[str]:
    """Deletes the sets and chains to which no pod's rule refers; returns the names of the others, which stay filled.

    Raises CniError.
    """
    with nft.open_socket() as socket:
        return cluster_netlink.remove(socket) + LegacyChains().remove()


def _change(
    state: Mapping[int, Collapsed], added: Iterable[Network | Address], removed: Iterable[Network | Address]
) -> tuple[Networks, Networks]:
    """Changes the networks of both IP versions; returns the collapsed networks that are new, and the former ones."""
    numbers: dict[int, tuple[list[int], list[int]]] = {version: ([], []) for version in _VERSIONS}
    for position, networks in enumerate((added, removed)):
        for network in networks:
            numbers[network.version][position].append(number_of(network))
    new, gone = set[Network](), set[Network]()
    for version, (more, less) in numbers.items():
        for networks, changed in zip((new, gone), state[version].change(more, less), strict=True):
            networks.update(network_of(version, number) for number in changed)
    return frozenset(new), frozenset(gone)


def _networks(state: Mapping[int, Collapsed]) -> Networks:
    return frozenset(network_of(version, number) for version, each in state.items() for number in each.networks)


def _create_chains(versions: Iterable[int]) -> None:
    """Creates the chain of iptables in the families that lack it, in the variant of the host's program."""
    missing = iptables.get_missing_chains(versions, TABLE, [CLUSTER_CHAIN])
    for family, chains in missing.items():
        if chains:
            with suppress(RefusedError):  # an ADD has created it since
                iptables.apply(
                    {family: [IptablesChange.new_chain(CLUSTER_CHAIN)]}, TABLE, f"create chain {CLUSTER_CHAIN}"
                )
