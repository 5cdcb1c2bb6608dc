"""The masquerading options of every plugin with `ipMasq`: their keys, and the steps for a plugin's verbs.

This module reads the options once, in `parse`. It removes rules whatever the options are, since they may have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attachment.masquerade import backend
from attachment.masquerade.spec import Masquerade
from attachment.repair import repair_if_missing
from attachment.sandbox import Sandbox, attachment_ips
from attachment.veth import list_other_addresses
from cni.address import Cidr, Network, parse_cidr
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code, invalid_conf, run_all
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
    Key("nonMasqueradeCluster", (BOOLEAN,)),
)


@dataclass(frozen=True)
class MasqueradeOptions:
    """The parsed options: `backend` is "" for the first that works; traffic to `exempt` is not masqueraded.

    With `cluster`, nor is traffic to the networks of the cluster, which podwire-agent keeps.
    """

    backend: str
    exempt: tuple[Network, ...]
    cluster: bool = False

    def add(self, args: CmdArgs, conf: NetConf, result: Result, sandbox: Sandbox, undo: Undo) -> None:
        """Masquerades the attachment's addresses in `result`, and pushes the undo; raises CniError."""
        spec = self._spec(args, conf, result)
        undo.push("remove the masquerade rules", partial(_delete, spec, sandbox.namespace))
        backend.BACKENDS.add(spec, self.backend)

    def check(self, args: CmdArgs, conf: NetConf, prev_result: Result) -> None:
        """Checks that the attachment is masqueraded; raises CniError(999)."""
        backend.BACKENDS.check(self._spec(args, conf, prev_result), self.backend)

    def repair(self, args: CmdArgs, conf: NetConf, prev_result: Result) -> None:
        """Creates the attachment's missing rules; raises CniError."""
        spec = self._spec(args, conf, prev_result)
        create = partial(backend.BACKENDS.add, spec, self.backend)
        repair_if_missing("the masquerading", partial(backend.BACKENDS.check, spec, self.backend), create)

    def refuse_unavailable(self) -> None:
        """Raises CniError(50) if no configured backend works."""
        if problem := backend.BACKENDS.get_problem(self.backend):
            fix = 'install what is missing, or set "ipMasqBackend" to the other one, or "ipMasq" to false'
            raise CniError(Code.PLUGIN_NOT_AVAILABLE, f'"ipMasq" does not work on this node: {problem}', fix)

    def _spec(self, args: CmdArgs, conf: NetConf, result: Result) -> Masquerade:
        ips = tuple(ip.address for ip in attachment_ips(result, args.ifname, strict=False))
        return Masquerade(conf.name, args.container_id, args.ifname, ips, self.exempt, self.cluster)


def parse(conf: NetConf) -> MasqueradeOptions | None:
    """Reads the keys of `KEYS`; returns None without masquerading. Raises CniError(7).

    Without IPAM there are no addresses to masquerade.
    """
    fields = conf.fields
    options = MasqueradeOptions(
        fields.string("ipMasqBackend"),
        _networks(fields, "nonMasqueradeCIDRs"),
        fields.boolean("nonMasqueradeCluster"),
    )
    if not fields.boolean("ipMasq") or not conf.ipam_type:
        return None
    if options.backend not in ("", *_BACKENDS):
        raise invalid_conf(
            f'unknown ipmasq backend "{options.backend}"',
            'set "ipMasqBackend" to "iptables" or "nftables", or leave it out for the one that works',
        )
    return options


def removal_steps(
    args: CmdArgs, conf: NetConf, other_addresses: tuple[Cidr, ...], *further: Callable[[NftSocket], None]
) -> list[Callable[[], None]]:
    """Returns the steps of a DEL that delete the attachment's rules in all backends, whatever is configured by now.

    `other_addresses` are those of the container's other interfaces, whose rules stay; `further` steps share the socket.
    The steps take some 0.3 ms and start no process, except for iptables-legacy, which they check only if masquerading
    may be enabled.
    """
    spec = Masquerade(conf.name, args.container_id, args.ifname)
    legacy = [partial(backend.delete_legacy, spec, other_addresses)] if may_be_enabled(conf) else []
    return [*legacy, partial(nft.run_steps, [*backend.deletion_steps(spec, other_addresses), *further])]


def remove_rules(args: CmdArgs, conf: NetConf, *further: Callable[[NftSocket], None]) -> None:
    """Deletes the attachment's rules, but neither its interface nor its addresses."""
    run_all(*removal_steps(args, conf, _list_other_addresses(args), *further))


def _list_other_addresses(args: CmdArgs) -> tuple[Cidr, ...]:
    """Returns the addresses of the container's other interfaces, none if its namespace does not exist."""
    try:
        with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
            return list_other_addresses(sandbox, sandbox.find_link())
    except NetnsMissingError:
        return ()


def may_be_enabled(conf: NetConf) -> bool:
    """Returns whether masquerading may be enabled, True for an `ipMasq` of a wrong type: for DEL, which accepts it."""
    return conf.fields.has("ipMasq") and conf.fields.raw("ipMasq") is not False


def _networks(fields: Fields, key: str) -> tuple[Network, ...]:
    networks = []
    for index, text in enumerate(fields.strings(key)):
        try:
            networks.append(parse_cidr(text).network)
        except ValueError:
            hint = 'write it like "10.0.0.0/8"'
            raise fields.error(f"{key}[{index}]", f"is not an address with prefix: {text}", hint) from None
    return tuple(networks)


def _delete(spec: Masquerade, namespace: Netns) -> None:
    with Sandbox(namespace, spec.ifname) as sandbox:
        other_addresses = list_other_addresses(sandbox, sandbox.find_link())
    backend.delete(spec, other_addresses)
