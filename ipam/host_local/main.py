"""The verbs of host-local, which allocates addresses from ranges and reserves them as files on this host.

One rule: DEL and GC release reservations even if the ranges of the configuration are invalid.
"""

from __future__ import annotations

from functools import partial

from attachment.cache import ResultCache
from cni.addressing import supports_multiple
from cni.args import CmdArgs
from cni.conf import LISTED_AT, VALID_NAME, Attachment, NetConf
from cni.errors import CniError, Code, combined, internal
from cni.result import DNS, Result
from cni.skel import Plugin
from ipam.host_local import allocator, pools, resolv
from ipam.host_local import conf as host_local_conf
from ipam.host_local.allocator import attachment_of
from ipam.host_local.store import Reservations, ReservationStore, owner_of
from process.undo import Undo


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Reserves one address of each range set, or with "pool" of each IP version of the pool."""
    conf = host_local_conf.parse(net_conf, args)
    dns = resolv.read(conf.resolv_conf) if conf.resolv_conf else DNS()
    store = ReservationStore(conf.data_dir, net_conf.name)
    attachment = Attachment(args.container_id, args.ifname)
    cache = partial(ResultCache.read, net_conf.name)
    with Undo() as undo:
        with store.locked() as reservations:
            if conf.pool:
                ips = pools.allocate(reservations, args, net_conf.name, conf, cache)
            else:
                ips = allocator.allocate(reservations, attachment, conf.range_sets, conf.requested, cache)
            owner = owner_of(*attachment)
            # Leaving the `with store.locked()` block writes the index, which may fail: the addresses are released then.
            undo.push("release the addresses", lambda: _release_all(store, [str(ip.address.ip) for ip in ips], owner))
        return Result(ips=ips, routes=conf.routes, dns=dns)


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Releases the attachment's addresses, whatever the configured ranges are; no address is success.

    Then raises the error of two addresses of a family, as the reference plugin. Invalid ranges and CNI_ARGS are
    not errors here.
    """
    with ReservationStore(host_local_conf.data_dir(net_conf), net_conf.name).locked() as reservations:
        for owner in (owner_of(args.container_id, args.ifname), owner_of(args.container_id, "")):
            names = reservations.find(owner)
            for name in names:
                reservations.release(name, owner)
            if names:
                break  # a reservation without interface is released only if there is no other
    if supports_multiple(net_conf):
        return  # parsing the ranges is not needed, and would take a tenth of the verb's time
    try:
        sets = host_local_conf.range_sets(net_conf)
    except CniError:
        return
    host_local_conf.check_families(sets, net_conf)


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks that the attachment has an address, any one, as the reference plugin does; raises CniError(999)."""
    conf = host_local_conf.parse(net_conf, args)
    with ReservationStore(conf.data_dir, net_conf.name).locked() as reservations:
        names = reservations.find(owner_of(args.container_id, args.ifname)) or reservations.find(
            owner_of(args.container_id, "")
        )
    if not names:
        raise internal(
            f"host-local: Failed to find address added by container {args.container_id}",
            f"no reservation of {args.ifname} in {conf.data_dir}/{net_conf.name}",
        )


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Releases the network's addresses of attachments that are not in `valid`; continues after errors.

    Keeps reservations that are younger than the list, if the caller says when it was listed: pods start meanwhile.
    """
    listed_at_ns = net_conf.fields.integer(LISTED_AT, minimum=0)
    store = ReservationStore(host_local_conf.data_dir(net_conf), net_conf.name)
    try:
        if not store.exists():
            return
    except OSError as error:
        raise store.unusable(error) from error
    running_owners = {owner_of(*attachment) for attachment in valid}
    running_owners |= {owner_of(attachment.container_id, "") for attachment in valid}
    errors = []
    with store.locked() as reservations:
        for owner, names in reservations.scan().items():
            # An owner that is not a container ID is a remark of the administrator, which reserves the address.
            if owner not in running_owners and VALID_NAME.fullmatch(attachment_of(owner).container_id):
                if listed_at_ns and any(reservations.is_younger(name, listed_at_ns) for name in names):
                    continue
                errors += _release_each(reservations, names, owner)
    failure = combined(errors)
    if failure:
        raise failure


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks that each range set has an available address, without locking the store; raises CniError(50)."""
    if net_conf.fields.nested("ipam") is None:
        raise CniError(
            Code.PLUGIN_NOT_AVAILABLE,
            "IPAM config missing 'ipam' key",
            'put the configuration of host-local into "ipam"',
        )
    sets = host_local_conf.range_sets(net_conf)  # may be empty: STATUS does not contain the ranges of the runtime
    pool, data_dir = net_conf.fields.section("ipam").string("pool"), host_local_conf.data_dir(net_conf)
    store = ReservationStore(data_dir, net_conf.name)
    cache = partial(ResultCache.read, net_conf.name)
    try:
        if pool:
            pools.check(store, pool, net_conf.name, data_dir, cache)
        full = store.check_usable() and [
            allocator.exhaustion_error(store, i, item, cache) for i, item in enumerate(sets)
        ]
    except OSError as error:
        reason = store.unusable(error)
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, reason.msg, reason.details) from error
    failure = combined([error for error in full or () if error])
    if failure:
        raise failure


def _release_all(store: ReservationStore, names: list[str], owner: bytes) -> None:
    with store.locked() as reservations:
        for name in names:
            reservations.release(name, owner)


def _release_each(reservations: Reservations, names: list[str], owner: bytes) -> list[CniError]:
    errors = []
    for name in names:
        try:
            reservations.release(name, owner)
        except OSError as error:
            path = f"{reservations.directory}/{name}"
            errors.append(CniError(Code.IO_FAILURE, f"cannot release {path}: {error.strerror}"))
    return errors


PLUGIN = Plugin(
    name="host-local",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, net_conf: host_local_conf.parse(net_conf, args),
    keys=host_local_conf.KEYS,
    gateways=host_local_conf.gateways,
)
