"""Host ports by nftables: the verbs, over netlink, without a process.

One rule: a verb changes everything in one transaction, both families together, and ADD deletes nothing that is right,
since deleting is slow; what the rules are stands in nftables_rules.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from cni.conf import Attachment
from cni.errors import CniError, Code
from kernel import nft, nft_rule
from kernel.errors import KernelError
from kernel.nft import Chain, NftSocket
from kernel.rtnl import Request
from plugins.portmap import nftables_rules as rules
from plugins.portmap.claims import Claim, contested, place, shadowed
from plugins.portmap.nftables_rules import ALL, CHAINS, ENTRY, Chains, Expected, Placed
from plugins.portmap.wanted import HostPorts

_USES_OF_ALL = 4  # two rules, and the two that jump to them
_AT_ONCE = 1000  # rules deleted in one transaction: 2,800 fill a socket's send buffer
_NEEDS = "host ports with nftables need a kernel that can do NAT and fib in tables of family ip: Linux 4.18 or later"
_REBUILD = "removed by somebody, or asked for only since; remove the container and create it again"


def add(wanted: HostPorts) -> None:
    """Leads the host ports to the attachment; its own rules that are there already are replaced.

    Raises CniError(11) for a port that is taken if that is refused, CniError(999) with a hint where the kernel cannot
    do it, UnavailableError.
    """
    with nft.opened() as socket:
        try:
            nft.retried(lambda: _add(socket, wanted))
        except KernelError as error:
            msg = f"unable to set up nftables rules for port mappings: {error.msg}"
            raise CniError(error.code, msg, _problem(socket, wanted.families) or error.details) from error


def delete(socket: NftSocket, wanted: HostPorts) -> None:
    """Deletes the rules of an attachment, ports and addresses of which need not be known; absent is success.

    Raises CniError(999).
    """

    def attempt() -> None:
        _delete(socket, [placed for version in CHAINS for placed in _own(socket, wanted, version)])

    try:
        nft.retried(attempt)
    except KernelError as error:
        raise CniError(error.code, f"error deleting nftables rules: {error.msg}", error.details) from error


def check(wanted: HostPorts) -> None:
    """Checks that the host ports lead to the attachment, and no other container's rule stands before them.

    Raises CniError(999), KernelError.
    """
    with nft.opened() as socket:
        for version in wanted.families:
            _check_way(socket, wanted, version)
            _check_ports(wanted, version, _candidates(socket, wanted, version))
            _check_masquerading(socket, wanted, version)


def gc(socket: NftSocket, network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the rules of a network's attachments that are not `valid`.

    The reference's rules do not tell their network: they stay, and are counted on stderr. Raises KernelError.
    """
    attachments = list(valid)
    own = rules.network_hash(network)
    kept = {rules.owner_of(network, item.container_id, item.ifname) for item in attachments}
    known = {rules.comment(item.container_id) for item in attachments}

    def attempt() -> int:
        stale, unknown = [], 0
        for version in CHAINS:
            for placed in _present(socket, version, wanted=partial(rules.may_be_of, own)):
                owner = rules.owner(placed.rule)
                if owner.startswith(own) and owner not in kept:
                    stale.append(placed)
                unknown += not owner and bool(placed.rule.comment) and placed.rule.comment not in known
        _delete(socket, stale)
        return unknown

    unknown = nft.retried(attempt)
    if unknown:
        print(
            f"portmap: GC leaves {unknown} rule(s) in table {rules.TABLE_NAME} alone that name no network: "
            "the reference plugin made them, for this network or another",
            file=sys.stderr,
        )


def problem() -> str:
    """Tells what the kernel lacks for host ports of IPv4, "" when nothing; tries it and leaves nothing behind."""
    try:
        with nft.opened() as socket:
            return _problem(socket, (4,))
    except nft.UnavailableError as error:
        return str(error)


def _add(socket: NftSocket, wanted: HostPorts) -> None:
    requests: list[Request] = []
    last: list[Request] = []
    for version in CHAINS:
        if version not in wanted.families:
            requests += [_deletion(placed) for placed in _own(socket, wanted, version)]
            continue
        base, carried = _base(socket, wanted, version)
        requests += base + _ports(socket, wanted, version) + _masquerading(socket, wanted, version)
        last += carried
    nft.change(socket, *requests, *last)


def _base(socket: NftSocket, wanted: HostPorts, version: int) -> tuple[list[Request], list[Request]]:
    """Returns what makes the shared chains right, and what then keeps other containers' conditions."""
    own = CHAINS[version]
    needed = [chain for chain in own if wanted.snat or chain != own.masquerading]
    found = nft.get(socket, *needed)
    entries = [nft.rules(socket, chain) if chain in found else [] for chain in (own.prerouting, own.output)]
    right = rules.entries(wanted, version)
    leads = all(len(each) == 1 and _is_one_of(right, each[0].expressions) for each in entries)
    # Of hostports_all the count is enough, as nobody else's rules belong there; CHECK looks at each.
    uses = next((chain.uses for chain in found if chain == own.hostports_all), 0)
    if found == needed and leads and uses == _USES_OF_ALL:
        return [], []
    contents = {own.hostports_all: ALL, own.prerouting: (ENTRY,), own.output: (ENTRY,)}
    requests = [nft.table(own.hostports.table), *map(nft.chain, needed)]
    # Flushed even when they are empty: another first pod may fill them before us.
    requests += [nft.flush(chain) for chain in contents]
    requests += [nft.rule(chain, expressions) for chain, content in contents.items() for expressions in content]
    conditions = {rules.entry_conditions(rule) for each in entries for rule in each} - {b""}
    return requests, _carried(socket, wanted, version, conditions) if conditions else []


def _carried(socket: NftSocket, wanted: HostPorts, version: int, conditions: Collection[bytes]) -> list[Request]:
    """Returns what puts conditions before each of the reference's rules, as they do not stand in the base chains now.

    The reference has the conditions of the last ADD there, for all networks; ours stand in each rule.
    """
    foreign = [
        placed
        for placed in _present(socket, version, CHAINS[version][:2], rules.names_no_owner)
        if not rules.owner(placed.rule) and not rules.is_of(placed.rule, wanted)
    ]
    before, *others = conditions
    if foreign and (others or b"lookup\0" in before):  # a set belongs to one rule
        print("portmap: the conditions of rules that the reference made are lost, as by its own ADD", file=sys.stderr)
        return []
    return [
        request
        for placed in foreign
        for request in (
            nft.rule(placed.chain, before + placed.rule.expressions, placed.rule.userdata, placed.rule.handle),
            _deletion(placed),
        )
    ]


def _ports(socket: NftSocket, wanted: HostPorts, version: int) -> list[Request]:
    """Returns what gives the attachment its rules of hostports, unless they are right."""
    candidates = _candidates(socket, wanted, version)
    own = [index for index, placed in enumerate(candidates) if rules.is_of(placed.rule, wanted)]
    held = {index: nft_rule.target(candidates[index].rule.expressions)[:2] for index in own}
    claims = [
        (index, claim)
        for index, claim in _claims(candidates, wanted)
        # What stands behind a rule of ours for the same port has it no more than before.
        if not any(ours < index and target == (claim.protocol, claim.host_port) for ours, target in held.items())
    ]
    at = place(wanted, version, [claim for _, claim in claims])
    before = None if at is None else claims[at][0]
    expected = rules.port_rules(wanted, version)
    old = [candidates[index] for index in own]
    if _are(expected, old, rules.userdata(wanted)) and (before is None or before > own[0]):
        return []
    if before is None and own and not any(contested(wanted, version, claim) for _, claim in claims):
        before = own[0]
    chain, handle = CHAINS[version].hostports, 0
    if before is not None:
        chain, handle = candidates[before].chain, candidates[before].rule.handle
    userdata = rules.userdata(wanted)
    return [nft.rule(chain, item.expressions, userdata, handle) for item in expected] + [*map(_deletion, old)]


def _masquerading(socket: NftSocket, wanted: HostPorts, version: int) -> list[Request]:
    """Returns what gives the attachment its rules of masquerading, unless they are right."""
    chain = CHAINS[version].masquerading
    expected = rules.masquerading_rules(wanted, version)
    old = _own(socket, wanted, version, (chain,))
    userdata = rules.userdata(wanted)
    if _are(expected, old, userdata):
        return []
    return [nft.rule(chain, item.expressions, userdata) for item in expected] + [*map(_deletion, old)]


def _are(expected: Sequence[Expected], found: Sequence[Placed], userdata: bytes) -> bool:
    """Tells whether the rules are the expected ones, all of them, in order, and named as ours."""
    return len(expected) == len(found) and all(
        placed.rule.userdata == userdata and nft_rule.same(item.expressions, placed.rule.expressions)
        for item, placed in zip(expected, found, strict=True)
    )


def _candidates(socket: NftSocket, wanted: HostPorts, version: int) -> list[Placed]:
    """Returns the rules of ports that are the container's, or for one of its ports, in the order of their effect.

    The others are not decoded: there may be a thousand.
    """
    ports = {mapping.host_port.to_bytes(2, "big") for mapping in wanted.of(version)}
    comment = rules.comment(wanted.container_id).encode()
    own = CHAINS[version]
    return _present(
        socket,
        version,
        (own.hostip_hostports, own.hostports),
        lambda message: comment in message or not ports.isdisjoint(nft_rule.pairs_compared(message)),
    )


def _claims(candidates: Sequence[Placed], wanted: HostPorts) -> list[tuple[int, Claim]]:
    """Returns the claims of other containers, each with its rule's index."""
    found = ((index, rules.claim_of(placed.rule, wanted)) for index, placed in enumerate(candidates))
    return [(index, claim) for index, claim in found if claim]


def _own(socket: NftSocket, wanted: HostPorts, version: int, chains: Iterable[Chain] = ()) -> list[Placed]:
    """Returns the attachment's rules, in all chains unless some are given."""
    comment = rules.comment(wanted.container_id).encode()
    found = _present(socket, version, chains, lambda message: comment in message)
    return [placed for placed in found if rules.is_of(placed.rule, wanted)]


def _present(
    socket: NftSocket, version: int, chains: Iterable[Chain] = (), wanted: str | Callable[[bytes], object] = ""
) -> list[Placed]:
    """Returns the `wanted` rules of those chains that are there, of all that have attachments' rules unless given."""
    own = CHAINS[version]
    asked = list(chains) or [own.hostip_hostports, own.hostports, own.masquerading]
    found = nft.get(socket, *asked)
    return [
        Placed(chain, rule)
        for chain, present in zip(asked, found, strict=True)
        if present and present.uses
        for rule in nft.rules(socket, chain, wanted)
    ]


def _delete(socket: NftSocket, found: Sequence[Placed]) -> None:
    for start in range(0, len(found), _AT_ONCE):
        nft.change(socket, *map(_deletion, found[start : start + _AT_ONCE]))


def _deletion(placed: Placed) -> Request:
    return nft.rule_deletion(placed.chain, placed.rule.handle)


def _check_way(socket: NftSocket, wanted: HostPorts, version: int) -> None:
    """Checks that packets come to the chains that attachments have rules in."""
    own = CHAINS[version]
    needed = [chain for chain in own if wanted.snat or chain != own.masquerading]
    for chain, found in zip(needed, nft.get(socket, *needed), strict=True):
        if found != chain:
            raise _missing(chain, f"chain {chain} is {'not called for NAT' if found else 'missing'}")
    entries = rules.entries(wanted, version)
    for chain in (own.prerouting, own.output):
        # The reference has the conditions of the last ADD there, whatever its network: those may keep packets away.
        if not any(_is_one_of(entries, rule.expressions) for rule in nft.rules(socket, chain)):
            raise _missing(chain, f"chain {chain} does not lead all that is for this host to hostports_all")
    found_rules = nft.rules(socket, own.hostports_all)
    if not all(any(nft_rule.same(jump, rule.expressions) for rule in found_rules) for jump in ALL):
        raise _missing(own.hostports_all, f"chain {own.hostports_all} does not lead to hostports")


def _check_ports(wanted: HostPorts, version: int, candidates: Sequence[Placed]) -> None:
    own = [(index, placed) for index, placed in enumerate(candidates) if rules.is_of(placed.rule, wanted)]
    ours = [(index, placed) for index, placed in own if rules.owner(placed.rule)]
    if ours or not own:
        options = [[item] for item in rules.port_rules(wanted, version)]
    else:
        ours, options = own, rules.reference_port_rules(wanted, version)
    claims = _claims(candidates, wanted)
    left = iter(ours)
    for option in options:
        right = [item.expressions for item in option]
        at = next((index for index, placed in left if _is_one_of(right, placed.rule.expressions)), None)
        if at is None:
            raise _missing(CHAINS[version].hostports, f'rule "{option[0].text}" is missing')
        mapping = option[0].mapping
        for index, claim in claims:
            if mapping and index < at and mapping.overlaps(claim.protocol, claim.host_port, claim.host_ip):
                raise shadowed(mapping, claim)


def _check_masquerading(socket: NftSocket, wanted: HostPorts, version: int) -> None:
    chain = CHAINS[version].masquerading
    own = _own(socket, wanted, version, (chain,))
    ours = [placed for placed in own if rules.owner(placed.rule)]
    expected = rules.masquerading_rules(wanted, version)
    if own and not ours:
        ours, expected = own, rules.reference_masquerading_rules(wanted, version)
    left = iter(ours)
    for item in expected:
        if not any(nft_rule.same(item.expressions, placed.rule.expressions) for placed in left):
            raise _missing(chain, f'rule "{item.text}" is missing')


def _is_one_of(ours: Iterable[bytes], theirs: bytes) -> bool:
    return any(nft_rule.same(expressions, theirs) for expressions in ours)


def _missing(chain: Chain, what: str) -> CniError:
    """Returns the error in the reference's words."""
    return CniError(Code.INTERNAL, f'missing hostport rules in "{chain.name}" chain', f"{what}: {_REBUILD}")


def _problem(socket: NftSocket, versions: Iterable[int]) -> str:
    """Has the kernel try what ADD would make, under the same names: others may have made such chains otherwise."""
    for version in versions:
        own: Chains = CHAINS[version]
        try:
            nft.rehearse(
                socket,
                nft.table(own.hostports.table),
                *map(nft.chain, own),
                nft.rule(own.prerouting, ENTRY),
                nft.rule(own.hostports, rules.example(version)),
                nft.rule(own.masquerading, nft_rule.masquerade()),
            )
        except KernelError as error:
            if error.errno == errno.EEXIST:
                family = "ip" if version == 4 else "ip6"
                return f"somebody has made it otherwise: nft list table {family} {rules.TABLE_NAME} ({error})"
            return f"{_NEEDS} ({error})"
    return ""
