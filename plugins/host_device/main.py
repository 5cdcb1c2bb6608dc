"""The verbs of host-device.

ADD saves the device's state in a file, moves the device into the container and configures it. DEL recognizes the device
by that file, also if it was renamed or is on the host already, and restores it. Without a file, as after an ADD of the
reference plugin, DEL recognizes it by its alias.
"""

from __future__ import annotations

import errno
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
from plugins.host_device.backup import BackupStore, SavedDevice
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
        store = BackupStore(conf.data_dir)
        candidate = _get_device(host, selected, store)
        selection.refuse_needed(host, candidate)
        selection.refuse_shared(host, candidate.link)
        present = sandbox.find_link()
        if present is not None or _has_renamed_device(args, store, sandbox):
            details = (
                f'in {sandbox.path} "{args.ifname}" is an altname of "{present.name}": set CNI_IFNAME to another name'
                if present and present.name != args.ifname
                else f"{sandbox.path} has an interface of this name, or renamed it: the container is attached already, "
                "or run DEL"
            )
            raise internal(f"{_move_failure(args.ifname, candidate)}: file exists", details)
        saved = _get_state(args, net_conf, host, sandbox, candidate)
        _move_to_sandbox(host, sandbox, candidate, saved, store, undo)
        container_link = sandbox.get_link()
        result = container_interface.allocate_addresses(args, net_conf, container_link, undo, dns=conf.dns)
        container_interface.configure(sandbox, container_link, result)
        return _with_pci_id(result, net_conf, saved.pci_id)


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Moves the device back to the host, then releases its addresses; a missing namespace or device is success.

    If the move fails, the addresses stay reserved because they are in use, and DEL can be repeated.
    """
    conf = host_device_conf.parse_leniently(net_conf)
    delegate.release_lease(args, net_conf)
    _bring_back(args, net_conf.name, conf)
    delegate.run_ipam(args, net_conf)


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the interface against prevResult, which later plugins may have changed; IPAM checks its part."""
    conf = host_device_conf.parse(net_conf)
    if not conf.selects_device:
        raise host_device_conf.no_device_error()
    prev_result = net_conf.required_prev_result()
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
        delegate.run_ipam(args, net_conf)
        if (conf.pci_bus_id or conf.device_id) and selection.select(conf).is_dpdk:
            return
        listed = container_interface.get_listed(args, prev_result)
        container_link = container_interface.get_checked(sandbox, listed, None)
        if container_link.flags & link.IFF_LOOPBACK:
            raise internal(f"Container interface {args.ifname} is the loopback interface", RECREATE_HINT)
        check_addresses_and_routes(sandbox, container_link, prev_result)


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Restores devices of deleted containers, which the kernel has moved back to the host, and releases addresses.

    Their attachments are not in `valid`. A device in an existing namespace stays: GC's list alone does not prove that
    nothing uses it.
    """
    store = BackupStore(host_device_conf.parse_leniently(net_conf).data_dir)
    stale = [item for item in store.list_all() if item.network == net_conf.name and item.attachment not in valid]
    reclamations = (partial(_reclaim, store, item) for item in stale)
    run_all(*reclamations, store.remove_draft, partial(delegate.run_ipam, args, net_conf))


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks whether ADD can succeed: configuration, the right to change links, dataDir, IPAM; raises CniError(50).

    It does not look for the device, which is in a container while it is used.
    """
    run_status_checks(partial(_refuse_unavailable, net_conf), partial(delegate.run_ipam, args, net_conf))


def cmd_reclaim(args: CmdArgs, net_conf: NetConf) -> None:
    """Restores the device of a container that is no longer running, for `podwire repair`."""
    store = BackupStore(host_device_conf.parse_leniently(net_conf).data_dir)
    saved = store.load(Attachment(args.container_id, args.ifname))
    if saved is None or saved.network != net_conf.name or not restoration.is_of_this_boot(saved):
        return
    with Socket() as host:
        if restoration.find_on_host(device.list_all(host), saved) and record.allows_change(
            f'restore the device "{saved.name}"'
        ):
            _reclaim(store, saved)


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


def _get_device(host: Socket, selected: Selection, store: BackupStore) -> Device:
    """Returns the selected device on the host; if it is in a container, the CniError names that. Raises KernelError."""
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


def _get_state(args: CmdArgs, net_conf: NetConf, host: Socket, sandbox: Sandbox, candidate: Device) -> SavedDevice:
    """Returns what DEL needs to recognize and restore the device; raises KernelError."""
    before = candidate.link
    return SavedDevice(
        network=net_conf.name,
        attachment=Attachment(args.container_id, args.ifname),
        netns=args.netns,
        life=restoration.get_life(sandbox.namespace, sandbox.socket),
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


def _move_to_sandbox(
    host: Socket, sandbox: Sandbox, candidate: Device, saved: SavedDevice, store: BackupStore, undo: Undo
) -> None:
    """Saves the device's state and moves the device into the sandbox; raises CniError, KernelError.

    The kernel changes name and alias after the move, so no program on the host sees a rename. It refuses a new name
    that the device has as altname: that altname is deleted first, and DEL adds it again.
    """
    before = candidate.link
    store.save(saved, undo)
    undo.push("restore the routes", partial(routes.restore, host, before.name, routes.list_through(host, before)))
    undo.push(f'move "{before.name}" back to the host', partial(restoration.bring_back, host, sandbox, saved))
    if sandbox.ifname in candidate.altnames:
        host.change(device.delete_altnames_request(before, (sandbox.ifname,)))
    try:
        with record.timed_step("move the device"):
            request = device.move_request(
                before, sandbox.namespace, "the container", name=sandbox.ifname, alias=before.name
            )
            host.change(request)
    except KernelError as error:
        msg = f"{_move_failure(sandbox.ifname, candidate)}: {reason(error.errno)}"
        details = _explain_used_altname(sandbox, candidate) if error.errno == errno.EEXIST else ""
        raise CniError(error.code, msg, details or error.details) from error
    store.update(replace(saved, container_index=sandbox.get_link().index))


def _explain_used_altname(sandbox: Sandbox, candidate: Device) -> str:
    """Returns which altname of the device an interface of the container has, and the fix; "" if none."""
    for item in device.list_all(sandbox.socket):
        for name in candidate.altnames:
            if name in (item.link.name, *item.altnames):
                before = candidate.link.name
                return (
                    f'"{item.link.name}" in {sandbox.path} has the name "{name}", which is an altname of "{before}": '
                    f'ip link property del dev "{before}" altname "{name}"'
                )
    return ""


def _move_failure(ifname: str, candidate: Device) -> str:
    """Returns the reference plugin's text for a device that cannot be moved."""
    return f'failed to move link failed to move "{ifname}" (host: "{candidate.link.name}") to container NS'


def _with_pci_id(result: Result, net_conf: NetConf, pci_id: str) -> Result:
    """Returns the result with the device's PCI address, a field of results since CNI 1.1.0."""
    if net_conf.version != "1.1.0" or not pci_id:
        return result
    return replace(result, interfaces=tuple(replace(item, pci_id=pci_id) for item in result.interfaces))


def _has_renamed_device(args: CmdArgs, store: BackupStore, sandbox: Sandbox) -> bool:
    """Returns whether the device of this attachment, of any network, is in the sandbox under another name."""
    saved = store.load(Attachment(args.container_id, args.ifname))
    return (
        saved is not None
        and restoration.is_of_this_boot(saved)
        and restoration.find_in_sandbox(sandbox, saved) is not None
    )


def _bring_back(args: CmdArgs, network: str, conf: HostDeviceConf) -> None:
    """Moves the device of an attachment back to the host, restores it and deletes its file.

    Raises CniError, KernelError, OSError.
    """
    store, attachment = BackupStore(conf.data_dir), Attachment(args.container_id, args.ifname)
    saved = store.load(attachment)
    if saved and not restoration.is_of_this_boot(saved):
        saved = None
    if saved and saved.network != network and not _is_renamed_network(saved, network, conf):
        return
    is_on_host, is_netns_deleted = False, False
    with Socket() as host:
        try:
            with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
                if saved:
                    is_on_host = restoration.bring_back(host, sandbox, saved, store)
                else:
                    _bring_back_unrecorded(host, sandbox, conf)
        except NetnsMissingError:
            is_on_host = saved is not None and restoration.restore_on_host(host, saved)
            # Without CNI_NETNS the namespace may still exist, with the device: then the file stays for the next DEL.
            is_netns_deleted = saved is None or not restoration.has_namespace(saved)
    if saved:
        _remove_file_or_warn(store, saved, is_on_host=is_on_host, is_netns_deleted=is_netns_deleted)
    else:
        store.remove(attachment)


def _is_renamed_network(saved: SavedDevice, network: str, conf: HostDeviceConf) -> bool:
    """Returns whether the device of a file with another network's name is the one that `conf` selects.

    Then the network was renamed since ADD. A configuration that selects another device is another network's, whose ADD
    failed because the interface existed. Raises CniError(999) if that cannot be decided.
    """
    is_selected = selection.is_selected(conf, saved)
    if is_selected is None:
        msg = f'"{saved.attachment.ifname}" in the container is "{saved.name}", which network "{saved.network}" moved'
        details = f'"{network}" does not name the device that it selects: run DEL of network "{saved.network}"'
        raise internal(msg, details)
    return is_selected


def _bring_back_unrecorded(host: Socket, sandbox: Sandbox, conf: HostDeviceConf) -> None:
    """Moves a device without a file, which the reference plugin moved to the pod, back to the host.

    It is called CNI_IFNAME, its alias is its name on the host, and it has kept its altnames. A pod can create an
    interface with any names and alias, also after a first DEL. So no interface is moved that the pod must have created,
    and none whose name the host uses: then the error leaves it to the operator which one is the device.

    Raises CniError, KernelError.
    """
    candidate = device.get(sandbox.socket, sandbox.ifname)
    if candidate is None or candidate.link.name != sandbox.ifname or not candidate.link.alias:
        return
    item = candidate.link
    if conf.device:
        is_selected = conf.device in (item.alias, *candidate.altnames)
    elif conf.hwaddr:
        is_selected = selection.parse_mac_or_none(item.mac) == selection.parse_mac_or_none(conf.hwaddr)
    else:
        is_selected = not item.kind  # devices of a bus are physical ones
    # Its peer or parent is in the container, too. That of a device of the host is not.
    is_of_pod = bool(item.iflink) and item.iflink_nsid is None
    if is_selected and not is_of_pod:
        restoration.move_to_host(host, sandbox, candidate, item.alias, "")


def _reclaim(store: BackupStore, saved: SavedDevice) -> None:
    """Restores a device that the kernel has moved back to the host, and deletes its file.

    The file of another device is deleted if the device was deleted with its namespace. Raises CniError, KernelError,
    OSError.
    """
    if not restoration.is_of_this_boot(saved):
        store.remove(saved.attachment)
        return
    with Socket() as host:
        is_on_host = restoration.restore_on_host(host, saved)
    if is_on_host or get_presence(saved.netns) is Presence.GONE:
        _remove_file_or_warn(store, saved, is_on_host=is_on_host, is_netns_deleted=True)


def _remove_file_or_warn(store: BackupStore, saved: SavedDevice, *, is_on_host: bool, is_netns_deleted: bool) -> None:
    """Deletes the file of a device that is on the host or no longer exists; prints a warning for another device.

    The kernel deletes virtual devices with their namespace. If a pod has moved the device to another namespace, which
    is unknown here, the file stays.
    """
    if is_on_host or (saved.kind and is_netns_deleted):
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
