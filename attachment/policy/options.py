"""The option networkPolicy of bridge and ptp: its key, and its part of the plugins' verbs.

One rule: DEL depends on the attachment's record, not on the key, which may have changed since ADD. A network without
the key costs ADD nothing, DEL one failed open(2), and GC the listing of a directory.

ADD writes the record, guards the port, and waits for podwire-agent before it sets the pod's interface up: no packet
passes before the policies are in force, not even one of a process that already runs in the namespace. DEL removes the
addresses from the packet filter and the guard in one transaction, then deletes the record; only then does IPAM release
the addresses.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from attachment.policy import gate, port_guard, records
from attachment.policy.records import PodRecord
from attachment.repair import repair_if_missing
from attachment.sandbox import attachment_ips
from cni import delegate
from cni.args import CmdArgs
from cni.conf import LISTED_AT, Attachment, NetConf
from cni.errors import CniError, Code, invalid_conf, run_all
from cni.keys import BOOLEAN, Key
from cni.result import Result
from kernel import boot, link
from kernel.netfilter import nft, nft_set
from kernel.netfilter.owned import repairable_error
from kernel.rtnl import Socket
from process.undo import Undo

KEY = Key("networkPolicy", (BOOLEAN,))
_CNI_ARGS = ("IP", "GATEWAY", "MAC", "K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_UID")


def parse(net_conf: NetConf) -> bool:
    """Returns whether networkPolicy is enabled; raises CniError(7)."""
    is_enabled = net_conf.fields.boolean(KEY.name)
    if is_enabled and not net_conf.ipam_type:
        raise invalid_conf('"networkPolicy" needs "ipam"', "policies identify pods by their addresses: configure IPAM")
    return is_enabled


def build_record(args: CmdArgs, net_conf: NetConf, result: Result, host_veth: str, mac: str, guard: str) -> PodRecord:
    """Returns the record of an attachment, with its addresses in `result`; raises CniError(4) for invalid CNI_ARGS."""
    names = args.cni_args(*_CNI_ARGS)
    return PodRecord(
        boot=boot.get_boot_id(),
        namespace=names.get("K8S_POD_NAMESPACE", ""),
        pod=names.get("K8S_POD_NAME", ""),
        uid=names.get("K8S_POD_UID", ""),
        network=net_conf.name,
        container_id=args.container_id,
        ifname=args.ifname,
        host_veth=host_veth,
        mac=mac,
        addresses=tuple(ip.address.ip for ip in attachment_ips(result, args.ifname, strict=False)),
        guard=guard,
    )


def add(pod: PodRecord, undo: Undo) -> None:
    """Writes the record and guards the port; call it before the interface is up. Raises CniError, KernelError."""
    undo.push("remove the pod from the network policies", partial(_delete, pod.file_name))
    records.write(pod)
    port_guard.add(pod)


def wait(pod: PodRecord) -> None:
    """Waits until the policies of the pod are in force; call it before the interface is up. Raises CniError(11).

    A container that Kubernetes did not start has no policies.
    """
    if pod.namespace:
        gate.wait(pod)


def remove(args: CmdArgs, net_conf: NetConf) -> None:
    """Removes the attachment from the packet filter and the guard, and its record; raises CniError, KernelError."""
    file_name = records.file_name_of(net_conf.name, args.container_id, args.ifname)
    _delete(file_name)
    if net_conf.fields.has(KEY.name):
        records.delete_draft(file_name)


def remove_rules(args: CmdArgs, net_conf: NetConf) -> None:
    """Removes record and guard if the pod's port is missing: DEL ran during `repair`. Raises CniError, KernelError.

    If the port exists, the pod runs, perhaps as a new container of the same name, and keeps both.
    """
    file_name = records.file_name_of(net_conf.name, args.container_id, args.ifname)
    try:
        pod = records.read(file_name)
    except (OSError, ValueError):
        return
    with Socket() as host:
        (port,) = link.get(host, link.by_name_request(pod.host_veth))
    if port is None:
        _delete(file_name)


def release_lease(args: CmdArgs, net_conf: NetConf) -> None:
    """Removes the attachment from the packet filter, then runs delegate.release_lease; only with the IPAM plugin dhcp.

    With other IPAM plugins it does nothing: `release` removes the attachment after the interface has been deleted. If
    the removal fails, the lease remains until `release`, which reports the error.
    """
    if net_conf.ipam_type == "dhcp":
        with suppress(CniError, OSError):
            remove(args, net_conf)
            delegate.release_lease(args, net_conf)


def release(args: CmdArgs, net_conf: NetConf) -> None:
    """Removes the attachment from the packet filter, then has IPAM release its addresses; raises CniError.

    If the removal fails, the addresses stay reserved: the next pod with them would get the policies of this one.
    """
    remove(args, net_conf)
    delegate.run_ipam(args, net_conf)


def check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the attachment's record and the guard of its port; raises CniError(999), KernelError."""
    port_guard.check(_get_record(records.file_name_of(net_conf.name, args.container_id, args.ifname)))


def gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes the network's attachments that are not `valid`, then has IPAM release their addresses; raises CniError.

    If the configuration has the time at which `valid` was listed, it keeps newer records: their pods started later.
    """
    listed_at_ns = net_conf.fields.integer(LISTED_AT, minimum=0) or 0
    valid_names = {records.file_name_of(net_conf.name, *attachment) for attachment in valid}
    others = (name for name in records.list_file_names() if name not in valid_names)
    stale = [name for name in others if _is_stale(name, net_conf, listed_at_ns)]
    run_all(*(partial(_delete, name) for name in stale))
    delegate.run_ipam(args, net_conf)


def repair(pod: PodRecord) -> None:
    """Restores a missing record and a missing guard of the port; raises CniError, KernelError."""
    repair_if_missing("the record for podwire-agent", partial(_get_record, pod.file_name), partial(records.write, pod))
    repair_if_missing("the guard of the port", partial(port_guard.check, pod), partial(port_guard.add, pod))


def refuse_unavailable(guard: str) -> None:
    """Raises CniError(50) if the kernel cannot guard ports."""
    if problem := port_guard.get_problem(guard):
        hint = 'use another kernel, or set "networkPolicy" to false'
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, f'"networkPolicy" does not work on this node: {problem}', hint)


def _get_record(file_name: str) -> PodRecord:
    """Returns a record; raises CniError(999) if it is missing or damaged."""
    try:
        return records.read(file_name)
    except (OSError, ValueError) as error:
        raise repairable_error(f"the record of the pod for podwire-agent is missing or damaged: {error}") from error


def _is_stale(file_name: str, net_conf: NetConf, listed_at_ns: int) -> bool:
    """Returns whether a record is of this network, and older than the list of attachments (0: time unknown)."""
    try:
        return records.read(file_name).network == net_conf.name and not (
            listed_at_ns and records.get_time_ns(file_name) >= listed_at_ns
        )
    except (OSError, ValueError):
        return False  # deleted meanwhile, or not a record


def _delete(file_name: str) -> None:
    records.delete(file_name, _delete_elements)


def _delete_elements(pod: PodRecord) -> None:
    with nft.open_socket() as socket:
        nft_set.delete_existing(socket, [*gate.filter_keys(pod.addresses), *port_guard.keys(pod)])
