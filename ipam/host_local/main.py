"""host-local: addresses from ranges, reserved as files on this host.

One rule: a reservation is made once and released by whatever is left of the configuration.
"""

from __future__ import annotations

from functools import partial

from attachment.cache import ResultCache
from cni.addressing import supports_multiple
from cni.args import CmdArgs
from cni.conf import VALID_NAME, Attachment, NetConf
from cni.errors import CniError, Code, combined
from cni.result import DNS, Result
from cni.skel import Plugin
from ipam.host_local import allocator, conf, resolv
from ipam.host_local.allocator import attachment_of
from ipam.host_local.store import Reservations, Store, owner_of
from process.undo import Undo


def cmd_add(args: CmdArgs, netconf: NetConf) -> Result:
    """Reserves one address of each range set."""
    wanted = conf.parse(netconf, args)
    dns = resolv.read(wanted.resolv_conf) if wanted.resolv_conf else DNS()
    store = Store(wanted.data_dir, netconf.name)
    attachment = Attachment(args.container_id, args.ifname)
    cache = partial(ResultCache.read, netconf.name)
    with Undo() as undo:
        with store.locked() as held:
            ips = allocator.allocate(held, attachment, wanted.range_sets, wanted.requested, cache)
            owner = owner_of(*attachment)
            # What fails when this block is left, for want of memory say, is an ADD that has failed.
            undo.push("release the addresses", lambda: _release(store, [str(ip.address.ip) for ip in ips], owner))
        return Result(ips=ips, routes=wanted.routes, dns=dns)


def cmd_del(args: CmdArgs, netconf: NetConf) -> None:
    """Releases what the attachment has, whatever the configuration says of ranges; nothing there is success.

    Then it reports what the reference reports on DEL, too, except for errors of ranges: they are irrelevant here.
    """
    with Store(conf.data_dir(netconf), netconf.name).locked() as held:
        for owner in (owner_of(args.container_id, args.ifname), owner_of(args.container_id, "")):
            names = held.find(owner)
            for name in names:
                held.release(name, owner)
            if names:
                break  # a legacy entry, without ifname, counts only when there is no other
    args.cni_args("IP")
    if supports_multiple(netconf):
        return  # ranges need not be read: that would be a tenth of the whole time
    try:
        sets = conf.range_sets(netconf)
    except CniError:
        return
    conf.check_families(sets, netconf)


def cmd_check(args: CmdArgs, netconf: NetConf) -> None:
    """Tells whether the attachment has an address, irrespective of which (as the reference)."""
    wanted = conf.parse(netconf, args)
    with Store(wanted.data_dir, netconf.name).locked() as held:
        found = held.find(owner_of(args.container_id, args.ifname)) or held.find(owner_of(args.container_id, ""))
    if not found:
        raise CniError(
            Code.INTERNAL,
            f"host-local: Failed to find address added by container {args.container_id}",
            f"no reservation of {args.ifname} in {wanted.data_dir}/{netconf.name}",
        )


def cmd_gc(args: CmdArgs, netconf: NetConf, valid: frozenset[Attachment]) -> None:
    """Releases every address of this network that belongs to no valid attachment; goes on after errors."""
    store = Store(conf.data_dir(netconf), netconf.name)
    try:
        if not store.exists():
            return
    except OSError as error:
        raise store.unusable(error) from error
    living = {owner_of(*attachment) for attachment in valid}
    living |= {owner_of(attachment.container_id, "") for attachment in valid}
    errors = []
    with store.locked() as held:
        for owner, names in held.scan().items():
            # What no runtime can have written is a note of the administrator's, who keeps the address to himself.
            if owner not in living and VALID_NAME.fullmatch(attachment_of(owner).container_id):
                errors += _release_each(held, names, owner)
    failure = combined(errors)
    if failure:
        raise failure


def cmd_status(args: CmdArgs, netconf: NetConf) -> None:
    """Tells whether ADD would find a free address in each range set; looks only, and takes no lock."""
    if netconf.fields.nested("ipam") is None:
        raise CniError(
            Code.PLUGIN_NOT_AVAILABLE, "IPAM config missing 'ipam' key", 'host-local is configured in "ipam"'
        )
    sets = conf.range_sets(netconf)  # may be none: the runtime's own are not sent with STATUS
    store = Store(conf.data_dir(netconf), netconf.name)
    cache = partial(ResultCache.read, netconf.name)
    try:
        full = store.check_usable() and [
            allocator.exhaustion_error(store, i, item, cache) for i, item in enumerate(sets)
        ]
    except OSError as error:
        reason = store.unusable(error)
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, reason.msg, reason.details) from error
    failure = combined([error for error in full or () if error])
    if failure:
        raise failure


def _release(store: Store, names: list[str], owner: bytes) -> None:
    with store.locked() as held:
        for name in names:
            held.release(name, owner)


def _release_each(held: Reservations, names: list[str], owner: bytes) -> list[CniError]:
    errors = []
    for name in names:
        try:
            held.release(name, owner)
        except OSError as error:
            path = f"{held.directory}/{name}"
            errors.append(CniError(Code.IO_FAILURE, f"cannot release {path}: {error.strerror}"))
    return errors


PLUGIN = Plugin(
    name="host-local",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, netconf: conf.parse(netconf, args),
    keys=conf.KEYS,
    gateways=conf.gateways,
)
