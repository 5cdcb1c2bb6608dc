"""Masquerading as a plugin's verbs need it: its keys, which all plugins with `ipMasq` have in common, and its steps.

One rule: what a configuration asks for is read in `parse`; rules are removed whatever it asks for by then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attachment.masquerade import backend
from attachment.masquerade.spec import Masquerade
from attachment.repair import repair_if_missing
from attachment.sandbox import Sandbox, attachment_ips
from attachment.veth import list_other_addresses
from cni.address import Interface, Network, parse_cidr
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code, run_all
from cni.fields import Fields
from cni.keys import BOOLEAN, CIDR, LIST, STRING, Key
from cni.result import Result
from kernel.netfilter import nft
from kernel.netfilter.nft import NftSocket
from kernel.netns import Netns, NetnsMissingError
from process.undo import Undo
from process.values import dataclass

_BACKENDS = ("iptables", "nftables")
KEYS = (
    Key("ipMasq", (BOOLEAN,)),
    Key("ipMasqBackend", (STRING,), choices=_BACKENDS),
    Key("nonMasqueradeCIDRs", (LIST,), (CIDR,)),
)


@dataclass(frozen=True)
class MasqueradeOptions:
    """`backend` is "" for the one that works; `exempt` are networks to which nothing is masqueraded."""

    backend: str
    exempt: tuple[Network, ...]

    def add(self, args: CmdArgs, conf: NetConf, result: Result, sandbox: Sandbox, undo: Undo) -> None:
        """Masquerades the attachment's addresses in `result`, and pushes what takes that back; raises CniError."""
        wanted = self._wanted(args, conf, result)
        undo.push("remove the masquerade rules", partial(_remove, wanted, sandbox.namespace))
        backend.BACKENDS.add(wanted, self.backend)

    def check(self, args: CmdArgs, conf: NetConf, prev_result: Result) -> None:
        """Checks that the attachment is masqueraded; raises CniError(999)."""
        backend.BACKENDS.check(self._wanted(args, conf, prev_result), self.backend)

    def repair(self, args: CmdArgs, conf: NetConf, prev_result: Result) -> None:
        """Makes what is missing of the attachment's rules; raises CniError."""
        wanted = self._wanted(args, conf, prev_result)
        make = partial(backend.BACKENDS.add, wanted, self.backend)
        repair_if_missing("the masquerading", partial(backend.BACKENDS.check, wanted, self.backend), make)

    def refuse_unavailable(self) -> None:
        """Raises CniError(50) where it cannot be served."""
        if problem := backend.BACKENDS.get_problem(self.backend):
            cure = 'install what is missing, or set "ipMasqBackend" to the other one, or "ipMasq" to false'
            raise CniError(Code.PLUGIN_NOT_AVAILABLE, f'"ipMasq" cannot be served: {problem}', cure)

    def _wanted(self, args: CmdArgs, conf: NetConf, result: Result) -> Masquerade:
        ips = tuple(ip.address for ip in attachment_ips(result, args.ifname, strict=False))
        return Masquerade(conf.name, args.container_id, args.ifname, ips, self.exempt)


def parse(conf: NetConf) -> MasqueradeOptions | None:
    """Reads `ipMasq`, `ipMasqBackend` and `nonMasqueradeCIDRs`, None where nothing is to be masqueraded: CniError(7).

    Without IPAM there is nothing to masquerade.
    """
    fields = conf.fields
    asked = MasqueradeOptions(fields.string("ipMasqBackend"), _networks(fields, "nonMasqueradeCIDRs"))
    if not fields.boolean("ipMasq") or not conf.ipam_type:
        return None
    if asked.backend not in ("", *_BACKENDS):
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f'unknown ipmasq backend "{asked.backend}"',
            'set "ipMasqBackend" to "iptables" or "nftables", or leave it out for the one that works',
        )
    return asked


def removal_steps(
    args: CmdArgs, conf: NetConf, others: tuple[Interface, ...], *further: Callable[[NftSocket], None]
) -> list[Callable[[], None]]:
    """Returns the steps of a DEL that remove the attachment's rules wherever they are, whatever is configured by now.

    `others` are the addresses of the container's other interfaces, whose rules stay; `further` steps share the socket.
    That takes some 0.3 ms and no process, but for iptables-legacy, which is looked at when masquerading is asked for.
    """
    wanted = Masquerade(conf.name, args.container_id, args.ifname)
    legacy = [partial(backend.delete_legacy, wanted, others)] if may_be_enabled(conf) else []
    return [*legacy, partial(nft.run_steps, [*backend.deletion_steps(wanted, others), *further])]


def remove_rules(args: CmdArgs, conf: NetConf, *further: Callable[[NftSocket], None]) -> None:
    """Removes the rules of an attachment that is no more, its interface and its addresses left to DEL."""
    run_all(*removal_steps(args, conf, _others(args), *further))


def _others(args: CmdArgs) -> tuple[Interface, ...]:
    """Returns the addresses of the container's other interfaces, none when its namespace is gone."""
    try:
        with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
            return list_other_addresses(sandbox, sandbox.find_link())
    except NetnsMissingError:
        return ()


def may_be_enabled(conf: NetConf) -> bool:
    """Tells whether masquerading is asked for, be it by a value of a wrong type: what DEL wants to know."""
    return conf.fields.has("ipMasq") and conf.fields.raw("ipMasq") is not False


def _networks(fields: Fields, key: str) -> tuple[Network, ...]:
    found = []
    for index, text in enumerate(fields.strings(key)):
        try:
            found.append(parse_cidr(text).network)
        except ValueError:
            hint = 'write it like "10.0.0.0/8"'
            raise fields.error(f"{key}[{index}]", f"is not an address with prefix: {text}", hint) from None
    return tuple(found)


def _remove(wanted: Masquerade, namespace: Netns) -> None:
    with Sandbox(namespace, wanted.ifname) as sandbox:
        others = list_other_addresses(sandbox, sandbox.find_link())
    backend.delete(wanted, others)
