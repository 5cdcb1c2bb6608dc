"""The verbs of loopback: set `lo` up in the container, and down again.

CNI_IFNAME and CNI_ARGS are ignored, and there are no configuration keys: the interface is always `lo`.
"""

from __future__ import annotations

from functools import partial
from ipaddress import IPv4Interface, IPv6Interface

from attachment.sandbox import Sandbox
from cni.address import Cidr
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import internal
from cni.result import Interface, IPConfig, Result
from cni.skel import Plugin
from kernel import address, link
from kernel.address import AssignedAddress
from kernel.link import Link
from kernel.netns import Netns, NetnsMissingError
from process.undo import Undo

_NAME = "lo"


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Sets `lo` up; the kernel adds its addresses.

    Returns prevResult unchanged if there is one, else the interface with its first address of each family. Refuses an
    `lo` with other than loopback addresses: another program uses it for a different purpose.
    """
    prev_result = net_conf.prev_result()
    with Netns(args.netns) as namespace, Sandbox(namespace, _NAME) as sandbox, Undo() as undo:
        socket, lo = sandbox.socket, sandbox.get_link()
        if not lo.is_up:
            undo.push("set lo down", partial(socket.change, link.set_request(lo, up=False)))
            socket.change(link.set_request(lo, up=True))
        addresses = address.list_on_link(socket, lo)
        _refuse_non_loopback(addresses)
    return prev_result or _result(args.netns, addresses, lo, with_mtu=net_conf.version == "1.1.0")


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks that `lo` is up; prevResult is not needed."""
    with Netns(args.netns) as namespace, Sandbox(namespace, _NAME) as sandbox:
        if not sandbox.get_link().is_up:
            raise internal("loopback interface is down", f"the network namespace is {args.netns}")


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Sets `lo` down; a missing namespace is success."""
    try:
        namespace = Netns(args.netns)
    except NetnsMissingError:
        return
    with namespace, Sandbox(namespace, _NAME) as sandbox:
        lo = sandbox.find_link()
        if lo is not None:  # None if a process in the container renamed it
            sandbox.socket.change(link.set_request(lo, up=False))


PLUGIN = Plugin("loopback", cmd_add=cmd_add, cmd_check=cmd_check, cmd_del=cmd_del)


def _refuse_non_loopback(addresses: list[AssignedAddress]) -> None:
    for assigned in addresses:
        if not assigned.address.ip.is_loopback:
            raise internal(
                f'loopback interface found with non-loopback address "{assigned.address}"',
                f'remove it from "{_NAME}" in the sandbox',
            )


def _result(sandbox: str, addresses: list[AssignedAddress], lo: Link, *, with_mtu: bool) -> Result:
    v4 = [item.address for item in addresses if isinstance(item.address, IPv4Interface)]
    v6 = [item.address for item in addresses if isinstance(item.address, IPv6Interface)]
    firsts: tuple[Cidr, ...] = (*v4[:1], *v6[:1])
    return Result(
        interfaces=(Interface(_NAME, mac=lo.mac, mtu=lo.mtu if with_mtu else 0, sandbox=sandbox),),
        ips=tuple(IPConfig(item, interface=0) for item in firsts),
    )
