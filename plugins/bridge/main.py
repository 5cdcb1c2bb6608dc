"""The verbs of bridge.

One rule: each change is followed by its undo, and DEL takes away everything whatever is already gone.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface

from cni import delegate
from cni.address import Address
from cni.address import Interface as Cidr
from cni.args import CmdArgs, is_interface_name
from cni.conf import NetConf
from cni.errors import CniError, Code, collected
from cni.result import Interface, IPConfig, Result, Route
from cni.skel import Plugin
from cni.undo import Undo
from kernel import link
from kernel.configure import Sandbox
from kernel.link import Link
from kernel.netns import Netns, NetnsMissingError
from kernel.rtnl import Socket
from kernel.teardown import delete_interface
from plugins.bridge import conf as bridge_conf
from plugins.bridge import port, switch
from plugins.bridge.check import check_attachment
from plugins.bridge.conf import BridgeConf

_CONTAINER = 2  # index of the sandbox's interface in the result: bridge, host end, sandbox end
_BRIDGE_TRIES = 5  # each loss takes another ADD that fails within the same millisecond
_IPV6_MTU_MIN = 1280
_DEFAULTS: tuple[Cidr, ...] = (IPv4Interface("0.0.0.0/0"), IPv6Interface("::/0"))


def cmd_add(args: CmdArgs, conf: NetConf) -> Result:
    """Attaches the sandbox to the bridge, with the addresses that IPAM gives.

    Nothing is left behind by a failure, except what other attachments may use by then: a bridge with ports, its
    gateway address, forwarding.
    """
    own = bridge_conf.parse(args, conf)
    bridge_conf.refuse_unsupported(conf)
    bridge_conf.refuse_addressless_version(own, conf)
    with Netns(args.netns) as namespace, Socket() as host, Undo() as undo:
        bridge, outside = _join(host, namespace, args.ifname, own, undo)
        addresses = Result()
        if own.ipam_type:
            addresses = _with_gateways(delegate.add(own.ipam_type, args, conf, undo), own)
        with Sandbox(namespace, args.ifname) as sandbox:
            inside = sandbox.link()
            result = _result(args, conf, addresses, (bridge, outside, inside))
            if own.ipam_type:
                sandbox.configure(inside, result, dad=own.dad)
            elif not own.container_interface_down:
                sandbox.socket.change(link.settings(inside, up=True))
            if not own.container_interface_down:
                port.wait_forwarding(host, outside)
            if own.is_gateway:  # last, since others share the bridge: what failed before has not touched it
                switch.add_gateways(host, bridge, own, result)
            if own.ipam_type:
                sandbox.announce(inside)
        return replace(result, dns=own.dns or result.dns)


def cmd_del(args: CmdArgs, conf: NetConf) -> None:
    """Deletes the sandbox's interface, then releases its addresses; whatever is gone already is success.

    The addresses are kept while the interface cannot be deleted: they are still in use.
    """
    with Socket() as host:
        try:
            if not args.netns:
                raise NetnsMissingError(Code.INVALID_NETNS, "no namespace")
            with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
                inside = sandbox.find()
                if inside is not None:
                    delete_interface(sandbox, inside, host)
        except NetnsMissingError:
            _delete_host_end(args, conf, host)
    bridge_conf.warn_of_leftovers(conf)
    _forward(args, conf)


def cmd_check(args: CmdArgs, conf: NetConf) -> None:
    """Checks that the attachment is as ADD left it, or as a later plugin says in prevResult; IPAM checks its part."""
    own = bridge_conf.parse(args, conf)
    prev_result = conf.prev_result()
    if prev_result is None:
        raise CniError(Code.INVALID_NETWORK_CONFIG, "Required prevResult missing", "CHECK needs the result of ADD")
    with Netns(args.netns) as namespace, Socket() as host:
        _forward(args, conf)
        check_attachment(args, own, prev_result, namespace, host)


def cmd_gc(args: CmdArgs, conf: NetConf) -> None:
    """Has IPAM release what belongs to no listed attachment; the links of the others died with their sandboxes."""
    _forward(args, conf)


def cmd_status(args: CmdArgs, conf: NetConf) -> None:
    """Tells whether ADD could be served: configuration, the bridge's name, IPAM.

    Raises CniError(50).
    """
    problems: list[CniError] = []
    kind = ""
    try:
        own = bridge_conf.parse(replace(args, args=""), conf)
        bridge_conf.refuse_unsupported(conf)
        kind = own.ipam_type
        with Socket() as host:
            switch.find(host, own.bridge)
    except CniError as error:
        problems.append(CniError(Code.PLUGIN_NOT_AVAILABLE, error.msg, error.details))
    if kind:
        try:
            delegate.run(kind, args, conf)
        except CniError as error:
            problems.append(error)
    failure = collected(problems)
    if failure:
        raise failure


PLUGIN = Plugin("bridge", cmd_add=cmd_add, cmd_del=cmd_del, cmd_check=cmd_check, cmd_gc=cmd_gc, cmd_status=cmd_status)


def _forward(args: CmdArgs, conf: NetConf) -> None:
    """Runs the same verb of the IPAM plugin, if there is one; raises its error unchanged."""
    kind = bridge_conf.ipam_type(conf)
    if kind:
        delegate.run(kind, args, conf)


def _join(host: Socket, namespace: Netns, ifname: str, own: BridgeConf, undo: Undo) -> tuple[Link, Link]:
    """Makes or adopts the bridge, joins it, and returns bridge and port.

    Another ADD that fails takes away the bridge it made, perhaps between our look and our joining; the bridge is then
    made again. Once joined, it stays: it has a port.
    """
    for tries_left in reversed(range(_BRIDGE_TRIES)):
        bridge = switch.ensure(host, own, undo)
        try:
            outside, joined = port.attach(host, namespace, ifname, bridge, own, undo)
        except port.BridgeVanishedError:
            if not tries_left:
                raise
        else:
            return switch.settled(host, bridge, joined), outside
    raise AssertionError("unreachable")


def _with_gateways(ipam: Result, own: BridgeConf) -> Result:
    """Binds IPAM's addresses to the sandbox's interface and adds the gateways and default routes asked for."""
    if not ipam.ips:
        raise CniError(Code.INTERNAL, "IPAM plugin returned missing IP config", f"the plugin {own.ipam_type} gave none")
    if 0 < own.mtu < _IPV6_MTU_MIN and any(isinstance(ip.address, IPv6Interface) for ip in ipam.ips):
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f'"mtu" {own.mtu} is too small for the IPv6 addresses that IPAM gives',
            f"IPv6 needs {_IPV6_MTU_MIN} bytes (RFC 8200)",
        )
    ips = tuple(replace(ip, interface=_CONTAINER, gateway=ip.gateway or _first(ip, own)) for ip in ipam.ips)
    if own.is_gateway:
        for ip in ips:
            switch.gateway_on_bridge(ip)  # one that cannot be is refused before it is used for routes
    routes = ipam.routes
    if own.is_default_gateway:
        for default in _DEFAULTS:
            gateway = next((ip.gateway for ip in ips if ip.gateway and isinstance(ip.address, type(default))), None)
            if gateway:
                routes = _with_default(routes, Route(default, gw=gateway))
    return replace(ipam, ips=ips, routes=routes)


def _first(ip: IPConfig, own: BridgeConf) -> Address | None:
    """Returns the first address of the subnet, the gateway when IPAM names none and there is to be one."""
    if not own.is_gateway:
        return None
    try:
        return ip.address.network.network_address + 1
    except ValueError:
        raise CniError(
            Code.INVALID_NETWORK_CONFIG, f"{ip.address} has no gateway and there is no next address to be it"
        ) from None


def _with_default(routes: tuple[Route, ...], default: Route) -> tuple[Route, ...]:
    """Adds a default route unless there is one with a gateway; one without would become the same route twice."""
    same = [route for route in routes if route.dst == default.dst]
    if any(route.gw for route in same):
        return routes
    plain = replace(default, gw=None)
    if plain in routes:
        return tuple(default if route == plain else route for route in routes)
    return (*routes, default)


def _result(args: CmdArgs, conf: NetConf, addresses: Result, links: tuple[Link, Link, Link]) -> Result:
    bridge, outside, inside = (
        Interface(item.name, item.mac, item.mtu if conf.version == "1.1.0" else 0) for item in links
    )
    return replace(addresses, interfaces=(bridge, outside, replace(inside, sandbox=args.netns)))


def _delete_host_end(args: CmdArgs, conf: NetConf, host: Socket) -> None:
    """Deletes the host's end of a pair whose sandbox cannot be reached, as far as prevResult tells which it is.

    A namespace whose file is gone lives on while a process is in it, and so does the pair with its addresses.
    """
    try:
        prev_result = conf.prev_result()
    except CniError:
        return  # DEL does what it can without
    for item in prev_result.interfaces if prev_result else ():
        if not item.sandbox and item.name.startswith("veth") and is_interface_name(item.name):
            (found,) = link.get(host, link.by_name(item.name))
            if found and found.kind == "veth" and found.mac == item.mac:
                host.change(link.deletion(found))
