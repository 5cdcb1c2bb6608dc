"""CHECK of host ports by nftables.

One rule: what the reference made is as good as what we make; the first thing that is wrong is told.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni.errors import CniError, Code
from kernel import nft_rule
from kernel.nft import Chain
from plugins.portmap import nftables_look as nft_look
from plugins.portmap import nftables_rules as rules
from plugins.portmap.claims import shadowed, shadows
from plugins.portmap.nftables_look import Look, Placed
from plugins.portmap.nftables_rules import ALL, CHAINS
from plugins.portmap.wanted import HostPorts


def check(look: Look, wanted: HostPorts, version: int) -> None:
    """Checks the host ports of one IP version; raises CniError(999), KernelError."""
    _check_way(look, wanted, version)
    _check_ports(wanted, version, look.candidates(wanted, version))
    _check_masquerading(look, wanted, version)


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
        if not any(nft_rule.is_one_of(entries, rule.expressions) for rule in look.rules(chain)):
            raise _missing(chain, f"chain {chain} does not lead all that is for this host to hostports_all")
    found = look.rules(own.hostports_all)
    if not all(any(nft_rule.same(jump, rule.expressions) for rule in found) for jump in ALL):
        raise _missing(own.hostports_all, f"chain {own.hostports_all} does not lead to hostports")


def _check_ports(wanted: HostPorts, version: int, candidates: Sequence[Placed]) -> None:
    own = [(index, placed) for index, placed in enumerate(candidates) if rules.is_of(placed.rule, wanted)]
    ours = [(index, placed) for index, placed in own if rules.owner(placed.rule)]
    if ours or not own:
        options = [[item] for item in rules.port_rules(wanted, version)]
    else:
        ours, options = own, rules.reference_port_rules(wanted, version)
    claims = nft_look.claims(candidates, wanted, version)
    left = iter(ours)
    for option in options:
        right = [item.expressions for item in option]
        at = next((index for index, placed in left if nft_rule.is_one_of(right, placed.rule.expressions)), None)
        if at is None:
            raise _missing(CHAINS[version].hostports, f'rule "{option[0].text}" is missing')
        mapping = option[0].mapping
        for index, claim in claims:
            if mapping and index < at and shadows(claim, mapping):
                raise shadowed(mapping, claim)


def _check_masquerading(look: Look, wanted: HostPorts, version: int) -> None:
    chain = CHAINS[version].masquerading
    own = look.own(wanted, [chain])
    ours = [placed for placed in own if rules.owner(placed.rule)]
    expected = rules.masquerading_rules(wanted, version)
    if own and not ours:
        ours, expected = own, rules.reference_masquerading_rules(wanted, version)
    left = iter(ours)
    for item in expected:
        if not any(nft_rule.same(item.expressions, placed.rule.expressions) for placed in left):
            raise _missing(chain, f'rule "{item.text}" is missing')


def _missing(chain: Chain, what: str) -> CniError:
    """Returns the error in the reference's words."""
    cure = "removed by somebody, or asked for only since; remove the container and create it again"
    return CniError(Code.INTERNAL, f'missing hostport rules in "{chain.name}" chain', f"{what}: {cure}")
