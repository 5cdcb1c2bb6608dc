"""The verbs of vrf.

ADD copies what it will move and validates everything before the first change. DEL needs no prevResult, and leaves what
it did not create.
"""

from __future__ import annotations

from functools import partial

from attachment.prev_result import RECREATE_HINT
from attachment.repair import repair_if_missing
from attachment.sandbox import Sandbox, attachment_ips
from cni import versions
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code, internal
from cni.result import Result
from cni.skel import Plugin
from kernel import address_copy, flock, link, route_copy, vrf
from kernel.link import Link
from kernel.netns import Netns, NetnsMissingError
from kernel.rtnl import Socket
from kernel.vrf import Vrf
from plugins.vrf import conf as vrf_conf
from plugins.vrf import device, membership, tables
from plugins.vrf.conf import VrfConf
from plugins.vrf.membership import VrfTarget
from process.undo import Undo

_NO_PREV_RESULT = "missing prevResult from earlier plugin"


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Moves the pod's interface into the VRF device, which it creates if it is missing; returns prevResult unchanged.

    A failure moves the interface back and deletes a created VRF device.
    """
    conf = vrf_conf.parse(net_conf)
    prev_result = net_conf.required_prev_result(_NO_PREV_RESULT)
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
        try:
            with Undo() as undo:
                _lock(namespace)
                _add(sandbox, conf, undo)
        except CniError as error:
            raise error.prefixed("cmdAdd failed: ") from error
    return prev_result


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Takes the interface out of the VRF device, and deletes the device with its last port if podwire created it.

    Missing parts are success, and so is a configuration without a valid "vrfname".
    """
    name = vrf_conf.lenient_name(net_conf)
    if not name:
        return
    try:
        with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
            _lock(namespace)
            interface, existing = device.get(sandbox.socket, args.ifname, name)
            if existing is None or existing.kind != vrf.KIND:
                return
            port = interface if interface and interface.master == existing.index else None
            if not device.delete_if_unused(sandbox.socket, existing, port) and port:
                sandbox.socket.change(vrf.set_master_request(port, 0, name))
    except NetnsMissingError:
        return


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks that the interface is in the VRF device, that the device is up, and its table and rules.

    Raises CniError(999).
    """
    conf = vrf_conf.parse(net_conf)
    prev_result = net_conf.required_prev_result(_NO_PREV_RESULT)
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
        _check_membership(sandbox, conf)
        _check_rules(sandbox, prev_result)


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks whether ADD can succeed: configuration, the right to create VRF devices; raises CniError(50)."""
    prefix = "vrf does not work on this node: "
    try:
        conf = vrf_conf.parse(net_conf)
        request = vrf.probe_request(conf.name)
        with Socket() as host, device.failing_as(request, f"could not add VRF {conf.name}"):
            vrf.probe(host, request)
    except CniError as error:
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, prefix + error.msg, error.details) from error


def cmd_repair(args: CmdArgs, net_conf: NetConf) -> None:
    """Adds the rules of VRF devices again, which a flush of the pod's routing rules removed."""
    vrf_conf.parse(net_conf)
    prev_result = net_conf.required_prev_result(_NO_PREV_RESULT)
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
        repair_if_missing(
            "the routing rules of VRFs",
            partial(_check_rules, sandbox, prev_result),
            partial(device.ensure_rules, sandbox.socket),
        )


PLUGIN = Plugin(
    "vrf",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_status=cmd_status,
    cmd_repair=cmd_repair,
    parse=lambda args, net_conf: vrf_conf.parse(net_conf),
    keys=vrf_conf.KEYS,
    versions=versions.SUPPORTED[versions.SUPPORTED.index("0.3.1") :],
)


def _add(sandbox: Sandbox, conf: VrfConf, undo: Undo) -> None:
    socket = sandbox.socket
    interface, existing = device.get(socket, sandbox.ifname, conf.name)
    if existing and (conflict := tables.table_conflict(tables.require_vrf(existing), conf.table)):
        raise conflict
    if interface is None:
        details = f"the network namespace is {sandbox.path}; list vrf after the plugin that creates the interface"
        raise internal(f"could not get link by name {sandbox.ifname}", details)
    _refuse_other_master(socket, interface)
    routes = [route_copy.from_message(message) for message in socket.dump(route_copy.list_request())]
    saved = membership.save(interface, address_copy.list_on_link(socket, interface), routes)
    target = existing or device.create(socket, conf, routes, undo)
    device.ensure_rules(socket)
    if not target.is_up:
        socket.change(vrf.set_up_request(target))
    undo.push(
        f'take "{interface.name}" out of VRF {conf.name}',
        partial(membership.move, sandbox, interface, saved, membership.MAIN),
    )
    membership.move(sandbox, interface, saved, VrfTarget(target.index, target.name, target.table))


def _lock(namespace: Netns) -> None:
    """Locks the namespace's file until it is closed: two attachments must not choose one table; raises CniError(11)."""
    flock.acquire(namespace.fileno(), namespace.path, "the VRFs of the network namespace")


def _refuse_other_master(socket: Socket, interface: Link) -> None:
    """Raises CniError(999), with the text of the reference plugin, if the interface is a port of another link."""
    if interface.master:
        (master,) = link.get(socket, link.by_index_request(interface.master))
        name = master.name if master else str(interface.master)
        details = f"it is a port of {name}{f' ({master.kind})' if master and master.kind else ''}; " + RECREATE_HINT
        raise internal(f"interface {interface.name} has already a master set: {name}", details)


def _check_membership(sandbox: Sandbox, conf: VrfConf) -> Vrf:
    interface, existing = device.get(sandbox.socket, sandbox.ifname, conf.name)
    if existing is None:
        raise internal("Link not found", f"there is no VRF {conf.name} in {sandbox.path}; {RECREATE_HINT}")
    tables.require_vrf(existing)
    if interface is None or interface.master != existing.index:
        details = f"the interface is {'not in that VRF' if interface else 'missing'}; {RECREATE_HINT}"
        raise internal(f"failed to find {sandbox.ifname} associated to vrf {conf.name}", details)
    if conflict := tables.table_conflict(existing, conf.table):
        raise conflict
    if not existing.is_up:
        raise internal(f"VRF {conf.name} is down", f'in the container: ip link set "{conf.name}" up')
    return existing


def _check_rules(sandbox: Sandbox, prev_result: Result) -> None:
    """Checks the rules of the IP versions of the interface's addresses; raises CniError(999)."""
    versions_used = {ip.address.version for ip in attachment_ips(prev_result, sandbox.ifname, strict=False)}
    for version in device.versions_without_rule(sandbox.socket):
        if version in versions_used:
            details = f"in the container: ip {'-6 ' if version == 6 else ''}rule add l3mdev pref 1000"
            raise internal(f"the IPv{version} routing rule of VRFs is missing", details)
