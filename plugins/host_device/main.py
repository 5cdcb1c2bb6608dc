"""The verbs of host-device.

ADD records the device's state, moves it into the container and configures it. DEL brings it back by that record,
wherever and under whatever name the device is, or by its alias if the reference plugin moved it.
"""

from __future__ import annotations

import sys
from functools import partial

from attachment import container_interface
from attachment.presence import Presence, get_presence
from attachment.prev_result import RECREATE_HINT
from attachment.sandbox import Sandbox, check_addresses_and_routes
from cni import delegate
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError, Code, internal, run_all, run_status_checks
from cni.result import Interface, Result
from cni.skel import Plugin
from kernel import device, link, saved_address, sysfs
from kernel.device import Device
from kernel.errors import KernelError, reason
from kernel.netns import Netns, NetnsMissingError
from kernel.rtnl import Socket
from plugins.host_device import conf as host_device_conf
from plugins.host_device import restoration, routes, selection
from plugins.host_device.backup import Saved, Store
from plugins.host_device.conf import HostDeviceConf
from plugins.host_device.selection import Selection
from process import directories, record
from process.stderr import one_line
from process.undo import Undo
from process.values import replace


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Moves the device into the container, with the addresses that IPAM allocates, or without addresses.

    A failure moves the device back, with its former name, state and addresses. A device with a driver for programs in
    user space has no interface: its addresses are only returned.
    """
    conf = host_device_conf.parse(net_conf)
    net_conf.refuse_missing_ipam()
    selected = selection.select(conf)
    if selected.is_dpdk:
        with Netns(args.netns), Undo() as undo:
            result = _add_dpdk(args, net_conf, selected, undo)
        return result if conf.dns is None else replace(result, dns=conf.dns)
    with Netns(args.netns) as namespace, Socket() as host, Sandbox(namespace, args.ifname) as sandbox, Undo() as undo:
        candidate = _get_device(host, selected, Store(conf.data_dir))
        selection.refuse_needed(host, candidate)
        selection.refuse_parent(host, candidate.link)
        if sandbox.find_link() is not None or _is_attached(args, conf.data_dir, sandbox):
            details = (
                f"{sandbox.path} has an interface of this name, or renamed it: the container is attached already, or "
                "run DEL"
            )
            raise internal(f"{_not_moved(args.ifname, candidate)}: file exists", details)
        pci_id = _move(args, net_conf, conf.data_dir, host, sandbox, candidate, undo)
        container_link = sandbox.get_link()
        result = container_interface.allocate_addresses(args, net_conf, container_link, undo, dns=conf.dns)
        container_interface.configure(sandbox, container_link, result)
        return _with_pci_id(result, net_conf, pci_id)


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Returns the device to the host, then releases its addresses; a missing namespace or device is success.

    If the device cannot be returned, its addresses stay reserved because they are in use, and DEL can be repeated.
    """
    conf = host_device_conf.lenient(net_conf)
    delegate.release_lease(args, net_conf)
    _return_device(args, net_conf.name, conf)
    delegate.run_ipam(args, net_conf)


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the interface against prevResult, which later plugins may have changed; IPAM checks its part."""
    conf = host_device_conf.parse(net_conf)
    if not conf.selects_device:
        raise host_device_conf.no_device()
    prev_result = net_conf.required_prev_result()
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
        delegate.run_ipam(args, net_conf)
        if _is_dpdk(selection.select(conf) if conf.pci_bus_id or conf.device_id else None):
            return
        listed = container_interface.get_listed(args, prev_result)
        container_link = container_interface.get_checked(sandbox, listed, None)
        if container_link.flags & link.IFF_LOOPBACK:
            raise internal(f"Container interface {args.ifname} is the loopback interface", RECREATE_HINT)
        check_addresses_and_routes(sandbox, container_link, prev_result)


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Restores devices whose attachments are not in `valid` and that the kernel has moved back to the host.

    A device in an existing namespace stays: GC's list alone does not prove that nothing uses it.
    """
    store = Store(host_device_conf.lenient(net_conf).data_dir)
    stale = [item for item in store.list_all() if item.network == net_conf.name and item.attachment not in valid]
    collections = (partial(_collect, store, item) for item in stale)
    run_all(*collections, store.remove_draft, partial(delegate.run_ipam, args, net_conf))


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks configuration, the right to change links, dataDir, and IPAM; raises CniError(50).

    Not the device, which is in a container while it is used.
    """
    run_status_checks(partial(_refuse_unavailable, net_conf), partial(delegate.run_ipam, args, net_conf))


def cmd_reclaim(args: CmdArgs, net_conf: NetConf) -> None:
    """Restores the device of a container that is no longer running, for `podwire repair`."""
    store = Store(host_device_conf.lenient(net_conf).data_dir)
    saved = store.load(Attachment(args.container_id, args.ifname))
    if saved is None or saved.network != net_conf.name or not restoration.is_of_this_boot(saved):
        return
    with Socket() as host:
        if restoration.find_on_host(device.list_all(host), saved) and record.change(
            f'restore the device "{saved.name}"'
        ):
            _collect(store, saved)


PLUGIN = Plugin(
    "host-device",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    cmd_reclaim=cmd_reclaim,
    parse=lambda args, net_conf: host_device_conf.parse(net_conf),
    keys=host_device_conf.KEYS,
)


def _add_dpdk(args: CmdArgs, net_conf: NetConf, selected: Selection, undo: Undo) -> Result:
    ipam_result = delegate.add_ipam(args, net_conf, undo) if net_conf.ipam_type else Result()
    ips = tuple(replace(ip, interface=0) for ip in ipam_result.ips)
    result = replace(ipam_result, ips=ips, interfaces=(Interface(args.ifname, sandbox=args.netns),))
    return _with_pci_id(result, net_conf, selected.pci_id)


def _is_dpdk(selected: Selection | None) -> bool:
    return selected is not None and selected.is_dpdk


def _get_device(host: Socket, selected: Selection, store: Store) -> Device:
    """Returns the device; names the container that has it if it is not on the host. Raises CniError, KernelError."""
    try:
        return selection.get_device(host, selected)
    except KernelError:
        raise
    except CniError as error:
        for saved in store.list_all():
            if selected.conf.device in (saved.name, *saved.altnames) or (
                selected.pci_id and saved.pci_id == selected.pci_id
            ):
                container_id, ifname = saved.attachment
                details = f'"{saved.name}" is in container {container_id} as {ifname}; after a crash: podwire repair'
                raise CniError(error.code, error.msg, details) from error
        raise


def _move(
    args: CmdArgs, net_conf: NetConf, data_dir: str, host: Socket, sandbox: Sandbox, candidate: Device, undo: Undo
) -> str:
    """Saves the device's state and moves it into the sandbox; returns its PCI address. Raises CniError, KernelError.

    The kernel changes name and alias after the move, so no program on the host sees a rename.
    """
    store, before = Store(data_dir), candidate.link
    saved = Saved(
        network=net_conf.name,
        attachment=Attachment(args.container_id, args.ifname),
        netns=args.netns,
        life=restoration.compute_life(sandbox.namespace, sandbox.socket),
        name=before.name,
        kind=before.kind,
        index=before.index,
        container_index=0,
        mac=before.mac,
        permanent_mac=candidate.permanent_mac,
        pci_id=sysfs.get_pci_address(before.name),
        alias=before.alias,
        mtu=before.mtu,
        is_up=before.is_up,
        flags=before.flags & device.FLAGS,
        tx_queue=before.tx_queue,
        group=candidate.group,
        altnames=candidate.altnames,
        addresses=saved_address.list_on_link(host, before),
    )
    store.save(saved, undo)
    undo.push("restore the routes", partial(routes.restore, host, before.name, routes.list_through(host, before)))
    undo.push(f'move "{before.name}" back to the host', partial(restoration.return_device, host, sandbox, saved))
    try:
        with record.timed_step("move the device"):
            request = device.move_request(
                before, sandbox.namespace, "the container", name=args.ifname, alias=before.name
            )
            host.change(request)
    except KernelError as error:
        msg = f"{_not_moved(args.ifname, candidate)}: {reason(error.errno)}"
        raise CniError(error.code, msg, error.details) from error
    store.replace(replace(saved, container_index=sandbox.get_link().index))
    return saved.pci_id


def _not_moved(ifname: str, candidate: Device) -> str:
    """Returns the reference plugin's text for a device that cannot be moved."""
    return f'failed to move link failed to move "{ifname}" (host: "{candidate.link.name}") to container NS'


def _with_pci_id(result: Result, net_conf: NetConf, pci_id: str) -> Result:
    """Returns the result with the device's PCI address, which results have since CNI 1.1.0."""
    if net_conf.version != "1.1.0" or not pci_id:
        return result
    return replace(result, interfaces=tuple(replace(item, pci_id=pci_id) for item in result.interfaces))


def _is_attached(args: CmdArgs, data_dir: str, sandbox: Sandbox) -> bool:
    """Returns whether the sandbox has the device of this attachment, of any network, under another name."""
    saved = Store(data_dir).load(Attachment(args.container_id, args.ifname))
    return (
        saved is not None
        and restoration.is_of_this_boot(saved)
        and restoration.find_in_sandbox(sandbox, saved) is not None
    )


def _return_device(args: CmdArgs, network: str, conf: HostDeviceConf) -> None:
    store, attachment = Store(conf.data_dir), Attachment(args.container_id, args.ifname)
    saved = store.load(attachment)
    if saved and not restoration.is_of_this_boot(saved):
        store.remove(attachment)
        saved = None
    if saved and saved.network != network:
        return  # the interface is another network's; the ADD of this one failed
    is_on_host, is_deleted = False, False
    with Socket() as host:
        try:
            with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
                if saved:
                    is_on_host = restoration.return_device(host, sandbox, saved, store)
                else:
                    _return_unrecorded(host, sandbox, conf)
        except NetnsMissingError:
            is_on_host = saved is not None and restoration.restore_on_host(host, saved)
            # Without CNI_NETNS the namespace may still exist, with the device: then the file stays for the next DEL.
            is_deleted = saved is None or not restoration.has_namespace(saved)
    if saved:
        _finish(store, saved, is_on_host=is_on_host, is_deleted=is_deleted)
    else:
        store.remove(attachment)


def _return_unrecorded(host: Socket, sandbox: Sandbox, conf: HostDeviceConf) -> None:
    """Moves a device of the reference plugin back, which is called CNI_IFNAME; its name on the host is its alias.

    A pod can create an interface with any name and alias, also after a first DEL. So nothing is moved if the configured
    device is on the host, and no interface that can only be the pod's. Raises CniError, KernelError.
    """
    candidate = device.get(sandbox.socket, sandbox.ifname)
    if candidate is None or candidate.link.name != sandbox.ifname or not candidate.link.alias:
        return
    item = candidate.link
    if conf.device:
        is_selected = item.alias == conf.device and device.get(host, conf.device) is None
    elif conf.hwaddr:
        is_selected = selection.parse_or_none(item.mac) == selection.parse_or_none(conf.hwaddr)
    else:
        is_selected = not item.kind  # devices of a bus are physical ones
    # Its peer or parent is in the container, too. That of a device of the host is not.
    is_of_pod = bool(item.iflink) and item.iflink_nsid is None
    if is_selected and not is_of_pod:
        restoration.move_to_host(host, sandbox, candidate, item.alias, "")


def _collect(store: Store, saved: Saved) -> None:
    """Restores a device that is on the host, which proves that the container no longer has it.

    The state of another device is deleted if the namespace no longer exists. Raises CniError, KernelError, OSError.
    """
    if not restoration.is_of_this_boot(saved):
        store.remove(saved.attachment)
        return
    with Socket() as host:
        is_on_host = restoration.restore_on_host(host, saved)
    if is_on_host or get_presence(saved.netns) is Presence.GONE:
        _finish(store, saved, is_on_host=is_on_host, is_deleted=True)


def _finish(store: Store, saved: Saved, *, is_on_host: bool, is_deleted: bool) -> None:
    """Deletes the state of a device that is on the host, or that was deleted with its namespace, as virtual ones are.

    The pod may have moved a device on, to a namespace that nothing shows here: its state stays.
    """
    if is_on_host or (saved.kind and is_deleted):
        store.remove(saved.attachment)
        return
    msg = f'host-device: "{saved.name}" is not on the host yet; when it appears there, run: podwire repair'
    print(one_line(msg), file=sys.stderr)


def _refuse_unavailable(net_conf: NetConf) -> None:
    conf = host_device_conf.parse(net_conf)
    with Socket() as host:
        link.probe_set(host)
    try:
        directories.check_writable(conf.data_dir)
    except OSError as error:
        msg = f"host-device does not work on this node: cannot create files in {conf.data_dir}"
        details = 'set "dataDir" to a writable directory'
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, f"{msg}: {reason(error.errno or 0)}", details) from error
