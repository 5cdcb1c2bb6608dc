"""CHECK of host ports by nftables.

One rule: what the reference made is as good as what we make; the first thing that is wrong is told.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni.errors import CniError, Code
from kernel.netfilter import nft_rule
from kernel.netfilter.nft import Chain
from kernel.netfilter.owned import REPAIR_HINT
from plugins.portmap import nftables_rules as rules
from plugins.portmap import nftables_state as nft_look
from plugins.portmap.nftables_rules import ALL, CHAINS
from plugins.portmap.nftables_state import Look, Placed
from plugins.portmap.port_conflicts import Claim, shadowed, shadows
from plugins.portmap.spec import HostPorts


def check(look: Look, wanted: HostPorts, version: int) -> None:
    """Checks the host ports of one IP version; raises CniError(999), KernelError."""
    _check_way(look, wanted, version)
    candidates = look.candidates(wanted, version)
    ports = [(index, placed) for index, placed in enumerate(candidates) if rules.is_of(placed.rule, wanted)]
    masquerading = [*enumerate(look.own(wanted, [CHAINS[version].masquerading]))]
    references = _are_references(wanted, version, [placed for _, placed in (*ports, *masquerading)])
    _check_ports(wanted, version, ports, nft_look.claims(candidates, wanted, version), references=references)
    _check_masquerading(wanted, version, masquerading, references=references)


def _check_way(look: Look, wanted: HostPorts, version: int) -> None:
    """Checks that packets come to the chains in which attachments have rules."""
    for chain in rules.needed(wanted, version):
        if not look.has(chain):
            state = "not called for NAT" if look.is_there(chain) else "missing"
            raise _missing(chain, f"chain {chain} is {state}")
    own = CHAINS[version]
    entries = rules.entries(wanted, version)
    for chain in (own.prerouting, own.output):
        # The reference has the conditions of the last ADD there, whatever its network: those may keep packets away.
        if not any(nft_rule.is_any_of(entries, rule.expressions) for rule in look.rules(chain)):
            raise _missing(chain, f"chain {chain} does not lead all that is for this host to hostports_all")
    found = look.rules(own.hostports_all)
    if not all(any(nft_rule.is_same_rule(jump, rule.expressions) for rule in found) for jump in ALL):
        raise _missing(own.hostports_all, f"chain {own.hostports_all} does not lead to hostports")


def _are_references(wanted: HostPorts, version: int, own: Sequence[Placed]) -> bool:
    """Tells whether a container's rules are such as the reference makes.

    Those name no owner. But ours do not either when `nft` has listed and loaded them, which loses all of userdata but
    the comment: then the rule for the hairpin tells, and where there is none they are the same.
    """
    if not own or any(rules.owner(placed.rule) for placed in own):
        return False
    theirs = {item.expressions for item in rules.reference_masquerading_rules(wanted, version)}
    ours = {item.expressions for item in rules.masquerading_rules(wanted, version)} - theirs
    return not any(nft_rule.is_any_of(ours, placed.rule.expressions) for placed in own)


def _named(own: Sequence[tuple[int, Placed]]) -> Sequence[tuple[int, Placed]]:
    """Returns those that name their owner, all when there is none."""
    return [(index, placed) for index, placed in own if rules.owner(placed.rule)] or own


def _check_ports(
    wanted: HostPorts,
    version: int,
    own: Sequence[tuple[int, Placed]],
    claims: Sequence[tuple[int, Claim]],
    *,
    references: bool,
) -> None:
    """Demands a rule for each port, in order, and no claim on the port in front of it."""
    options = [[item] for item in rules.port_rules(wanted, version)]
    if references:
        options = rules.reference_port_rules(wanted, version)
    left = iter(_named(own))
    for option in options:
        right = [item.expressions for item in option]
        at = next((index for index, placed in left if nft_rule.is_any_of(right, placed.rule.expressions)), None)
        if at is None:
            raise _missing(CHAINS[version].hostports, f'rule "{option[0].text}" is missing')
        mapping = option[0].mapping
        for index, claim in claims:
            if mapping and index < at and shadows(claim, mapping):
                raise shadowed(mapping, claim)


def _check_masquerading(
    wanted: HostPorts, version: int, own: Sequence[tuple[int, Placed]], *, references: bool
) -> None:
    expected = rules.masquerading_rules(wanted, version)
    if references:
        expected = rules.reference_masquerading_rules(wanted, version)
    left = iter(_named(own))
    for item in expected:
        if not any(nft_rule.is_same_rule(item.expressions, placed.rule.expressions) for _, placed in left):
            raise _missing(CHAINS[version].masquerading, f'rule "{item.text}" is missing')


def _missing(chain: Chain, what: str) -> CniError:
    """Returns the error in the reference's words."""
    return CniError(Code.INTERNAL, f'missing hostport rules in "{chain.name}" chain', f"{what}: {REPAIR_HINT}")
