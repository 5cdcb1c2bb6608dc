"""The verbs of tap.

ADD creates the device in the container's namespace and registers the undo of each change next to the change.
"""

from __future__ import annotations

from functools import partial

from attachment import container_interface
from attachment.sandbox import Sandbox, check_addresses_and_routes
from cni import delegate
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import run_status_checks
from cni.result import Result
from cni.skel import Plugin
from kernel import tap
from kernel.netns import Netns
from plugins.tap import conf as tap_conf
from plugins.tap import device
from process.undo import Undo


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Creates the tap device, with the addresses that IPAM allocates, or without addresses.

    A failure is rolled back. IPv6 addresses stay tentative until a program opens the device: nothing waits for it.
    """
    conf = tap_conf.parse(args, net_conf)
    device.refuse_label(conf)
    net_conf.refuse_missing_ipam()
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox, Undo() as undo:
        bridge = device.find_bridge(sandbox, conf.bridge)
        container_interface.refuse_existing(sandbox, "tap")
        undo.push(f'delete "{args.ifname}"', partial(container_interface.delete_created, sandbox))
        container_link = device.create(sandbox, conf, bridge)
        result = container_interface.allocate_addresses(args, net_conf, container_link, undo, dns=conf.dns)
        container_interface.configure(sandbox, container_link, result, await_ipv6=False)
        return result


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Deletes the device, even if a program has it open, and releases its addresses; missing parts are success."""
    container_interface.delete(args, net_conf, tap.KIND)


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the device against prevResult, which later plugins may have changed; IPAM checks its part."""
    conf = tap_conf.parse(args, net_conf)
    prev_result = net_conf.required_prev_result()
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
        delegate.run_ipam(args, net_conf)
        listed = container_interface.get_listed(args, prev_result)
        container_link = container_interface.get_checked(sandbox, listed, None)
        device.check(sandbox, container_link, conf)
        check_addresses_and_routes(sandbox, container_link, prev_result)


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Makes IPAM release the addresses of attachments that are not in `valid`.

    Devices need no removal: the kernel deletes them with their network namespaces.
    """
    delegate.run_ipam(args, net_conf)


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks whether ADD can succeed: configuration, /dev/net/tun, IPAM. Raises CniError(50), CniError(51)."""
    run_status_checks(partial(_refuse_unavailable, args, net_conf), partial(delegate.run_ipam, args, net_conf))


PLUGIN = Plugin(
    "tap",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=tap_conf.parse,
    keys=tap_conf.KEYS,
)


def _refuse_unavailable(args: CmdArgs, net_conf: NetConf) -> None:
    device.refuse_label(tap_conf.parse(args, net_conf))
    tap.probe_device()
