"""The verbs of bridge.

One rule: each change is followed by its undo, and DEL takes away everything whatever is already gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from cni import delegate
from cni.address import Interface as Cidr
from cni.args import CmdArgs, is_interface_name
from cni.conf import Attachment, NetConf
from cni.errors import CniError, Code, all_of
from cni.result import Interface, Result
from cni.skel import Plugin
from cni.undo import Undo
from kernel import address, link, nft
from kernel.configure import Sandbox
from kernel.link import Link
from kernel.masquerade import backend
from kernel.masquerade.wanted import Masquerade
from kernel.netns import Netns, NetnsMissingError
from kernel.rtnl import Socket
from kernel.teardown import delete_interface
from kernel.vlan import refuse_unmakeable
from plugins.bridge import addresses, mtu, netfilter, port, spoof, switch, vlan
from plugins.bridge import conf as bridge_conf
from plugins.bridge.check import check_attachment
from plugins.bridge.conf import BridgeConf
from plugins.bridge.gateway import add_gateways, refuse_long_name

_CONTAINER = 2  # index of the sandbox's interface in the result: bridge, host end, sandbox end
_BRIDGE_TRIES = 5  # each loss takes another ADD that fails within the same millisecond


def cmd_add(args: CmdArgs, conf: NetConf) -> Result:
    """Attaches the sandbox to the bridge, with the addresses that IPAM gives.

    Nothing is left behind by a failure, except what other attachments may use by then: a bridge with ports, its
    gateway address, forwarding.
    """
    own = bridge_conf.parse(args, conf)
    bridge_conf.refuse_addressless_version(own, conf)
    refuse_long_name(own)
    with Netns(args.netns) as namespace, Socket() as host, Undo() as undo:
        own = mtu.resolved(host, own)
        joined = _join(host, namespace, args.ifname, own, undo)
        bridge, outside = joined.bridge, joined.outside
        fitted = mtu.fitted(host, bridge, own)
        given = Result()
        if own.ipam_type:
            given = addresses.completed(delegate.add(own.ipam_type, args, conf, undo), own, _CONTAINER)
        vlan.enforce(host, bridge, joined.filtering)  # the pod's end is down until now: no frame has passed
        with Sandbox(namespace, args.ifname) as sandbox:
            inside = sandbox.link()
            result = _result(args, conf, given, (fitted, outside, inside))
            if own.mac_spoof_check:
                undo.push("remove the MAC spoof check", partial(nft.each, [_unprotecting(args, conf)]))
                spoof.protect(conf.name, args.container_id, args.ifname, outside.name, inside.mac_bytes)
            _bring_up(sandbox, inside, own, result)
            if not own.container_interface_down:
                port.wait_forwarding(host, outside)
            if own.masquerade:
                wanted = addresses.masquerade(args, conf, own, result)
                undo.push("remove the masquerade rules", partial(_remove_masquerade, wanted, namespace))
                backend.BACKENDS.add(wanted, own.masquerade_backend)
            if own.is_gateway:  # last, since others share the bridge: what failed before has not touched it
                gateway = add_gateways(host, bridge, outside, own, result, undo)
                if gateway is not bridge:
                    result = replace(result, interfaces=(*result.interfaces, _interface(conf, gateway)))
            netfilter.ensure(own)
            mtu.fit(host, bridge, fitted)
            if own.ipam_type:
                sandbox.announce(inside)
        return replace(result, dns=own.dns or result.dns)


def cmd_del(args: CmdArgs, conf: NetConf) -> None:
    """Deletes the sandbox's interface and the attachment's rules, then releases its addresses; gone is success.

    The addresses are kept while the interface cannot be deleted: they are still in use. Otherwise all is tried, and
    what failed is told at the end. Rules are looked for whatever is configured by now: some 0.3 ms, no process.
    """
    with Socket() as host:
        others = _detach(args, conf, host)
    wanted = Masquerade(conf.name, args.container_id, args.ifname)
    legacy = [partial(backend.delete_legacy, wanted, others)] if bridge_conf.may_masquerade(conf) else []
    rules = [*backend.deletions(wanted, others), _unprotecting(args, conf)]
    all_of(*legacy, partial(nft.each, rules), partial(_forward, args, conf))


def cmd_check(args: CmdArgs, conf: NetConf) -> None:
    """Checks that the attachment is as ADD left it, or as a later plugin says in prevResult; IPAM checks its part."""
    own = bridge_conf.parse(args, conf)
    prev_result = conf.prev_result()
    if prev_result is None:
        raise CniError(Code.INVALID_NETWORK_CONFIG, "Required prevResult missing", "CHECK needs the result of ADD")
    with Netns(args.netns) as namespace, Socket() as host:
        _forward(args, conf)
        check_attachment(args, conf.name, own, prev_result, namespace, host)
    if own.masquerade:
        backend.BACKENDS.check(addresses.masquerade(args, conf, own, prev_result), own.masquerade_backend)


def cmd_gc(args: CmdArgs, conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes the rules of what is no listed attachment and has IPAM release its addresses.

    The links of such attachments died with their sandboxes. What cannot be proven to be this network's stays.
    """
    rules = [*backend.gc(conf.name, valid), lambda socket: spoof.gc(socket, conf.name, valid)]
    all_of(partial(backend.gc_legacy, conf.name, valid), partial(nft.each, rules), partial(_forward, args, conf))


def cmd_status(args: CmdArgs, conf: NetConf) -> None:
    """Tells whether ADD could be served: configuration, the bridge's name, what the kernel must have, IPAM.

    Raises CniError(50), CniError(51).
    """
    parts: list[Callable[[], None]] = [partial(_refuse_unavailable, args, conf), partial(_forward, args, conf)]
    all_of(*(partial(_as_status, part) for part in parts))


PLUGIN = Plugin("bridge", cmd_add=cmd_add, cmd_del=cmd_del, cmd_check=cmd_check, cmd_gc=cmd_gc, cmd_status=cmd_status)


def _forward(args: CmdArgs, conf: NetConf) -> None:
    """Runs the same verb of the IPAM plugin, if there is one; raises its error unchanged."""
    kind = bridge_conf.ipam_type(conf)
    if kind:
        delegate.run(kind, args, conf)


def _refuse_unavailable(args: CmdArgs, conf: NetConf) -> None:
    """Raises CniError when ADD would fail for a reason that has nothing to do with the container."""
    own = bridge_conf.parse(replace(args, args=""), conf)
    refuse_long_name(own)
    with Socket() as host:
        bridge = switch.find(host, own.bridge)
        if bridge is not None:
            vlan.filtering(host, bridge, own.vlans)
        else:
            refuse_unmakeable(host, own.bridge, filtering=own.vlans.filtering)
    netfilter.refuse_unavailable(own)
    if own.is_gateway and own.ipam_type:
        switch.refuse_unforwarding()
    if own.masquerade and (problem := backend.BACKENDS.problem(own.masquerade_backend)):
        cure = 'install what is missing, or set "ipMasqBackend" to the other one, or "ipMasq" to false'
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, f'"ipMasq" cannot be served: {problem}', cure)
    if own.mac_spoof_check and (problem := spoof.problem()):
        cure = 'use another kernel, or set "macspoofchk" to false'
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, f'"macspoofchk" cannot be served: {problem}', cure)


def _as_status(step: Callable[[], None]) -> None:
    """Runs a part of STATUS; what fails means code 50, unless it says code 51 (specification, section "STATUS")."""
    try:
        step()
    except CniError as error:
        if error.code == Code.LIMITED_CONNECTIVITY:
            raise
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, error.msg, error.details) from error


def _join(host: Socket, namespace: Netns, ifname: str, own: BridgeConf, undo: Undo) -> port.Joined:
    """Makes or adopts the bridge and joins it.

    Another ADD that fails takes away the bridge it made, perhaps between our look and our joining; the bridge is then
    made again. Once joined, it stays: it has a port.
    """
    for tries_left in reversed(range(_BRIDGE_TRIES)):
        bridge = switch.ensure(host, own, undo)
        try:
            joined = port.attach(host, namespace, ifname, bridge, own, undo)
        except port.BridgeVanishedError:
            if not tries_left:
                raise
        else:
            return replace(joined, bridge=switch.settled(host, bridge, joined.bridge))
    raise AssertionError("unreachable")


def _result(args: CmdArgs, conf: NetConf, given: Result, links: tuple[Link, Link, Link]) -> Result:
    bridge, outside, inside = (_interface(conf, item) for item in links)
    return replace(given, interfaces=(bridge, outside, replace(inside, sandbox=args.netns)))


def _unprotecting(args: CmdArgs, conf: NetConf) -> Callable[[nft.NftSocket], None]:
    return lambda socket: spoof.unprotect(socket, conf.name, args.container_id, args.ifname)


def _bring_up(sandbox: Sandbox, inside: Link, own: BridgeConf, result: Result) -> None:
    if own.ipam_type:
        sandbox.configure(inside, result, dad=own.dad)
    elif not own.container_interface_down:
        sandbox.socket.change(link.settings(inside, up=True))


def _detach(args: CmdArgs, conf: NetConf, host: Socket) -> tuple[Cidr, ...]:
    """Deletes the sandbox's interface, and returns the addresses of its other ones: their rules are not ours to delete.

    Without a namespace there are no others. Who is root in the sandbox may have given our interface another name, and
    ours to something else, `lo` even, which cannot be deleted; and our address to another interface.
    """
    try:
        with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
            inside = sandbox.find()
            others = _others(sandbox, inside)
            if inside is None or not inside.kind or not delete_interface(sandbox, inside, host):
                _delete_host_end(args, conf, host)
            return _elsewhere(others, conf)
    except NetnsMissingError:
        _delete_host_end(args, conf, host)
        return ()


def _remove_masquerade(wanted: Masquerade, namespace: Netns) -> None:
    with Sandbox(namespace, wanted.ifname) as sandbox:
        others = _others(sandbox, sandbox.find())
    backend.delete(wanted, others)


def _others(sandbox: Sandbox, inside: Link | None) -> tuple[Cidr, ...]:
    return tuple(item.address for item in address.elsewhere(sandbox.socket, inside))


def _interface(conf: NetConf, found: Link) -> Interface:
    return Interface(found.name, found.mac, found.mtu if conf.version == "1.1.0" else 0)


def _elsewhere(addresses: tuple[Cidr, ...], conf: NetConf) -> tuple[Cidr, ...]:
    """Returns those that prevResult, where it can be read, does not give to this attachment."""
    if all(item.ip.is_loopback for item in addresses):
        return addresses  # most sandboxes have no others, and reading prevResult takes time
    try:
        prev_result = conf.prev_result()
    except CniError:
        return addresses
    own = {item.address.ip for item in prev_result.ips} if prev_result else set()
    return tuple(item for item in addresses if item.ip not in own)


def _delete_host_end(args: CmdArgs, conf: NetConf, host: Socket) -> None:
    """Deletes the host's end of a pair that is not found from the sandbox, as far as prevResult tells which it is.

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
