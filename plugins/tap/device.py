"""The tap device of a container and the bridge in the container that it is attached to: finding, creating, checking."""

from __future__ import annotations

import errno

from attachment.prev_result import RECREATE_HINT
from attachment.sandbox import Sandbox
from cni.address import format_mac
from cni.errors import internal, invalid_conf
from kernel import link, selinux, tap
from kernel.errors import reason
from kernel.link import Link
from kernel.netns import entered
from plugins.tap.conf import TapConf


def find_bridge(sandbox: Sandbox, name: str) -> Link | None:
    """Returns the bridge in the container, None if the configuration names none; raises CniError(999), KernelError."""
    if not name:
        return None
    (bridge,) = link.get(sandbox.socket, link.by_name_request(name))
    if bridge is None:
        details = f'"bridge" must exist in the container before tap runs; the network namespace is {sandbox.path}'
        raise internal(f"failed to get bridge {name}: Link not found", details)
    if bridge.kind != "bridge":
        msg = f"failed to set tap {sandbox.ifname} as a port of bridge {name}: operation not supported"
        raise internal(msg, f'"{name}" is not a bridge but {bridge.kind or "of another kind"}: correct "bridge"')
    return bridge


def create(sandbox: Sandbox, conf: TapConf, bridge: Link | None) -> Link:
    """Creates the device with its final name, MAC address and MTU, attached to `bridge`; raises CniError, KernelError.

    It is down.
    """
    try:
        with entered(sandbox.namespace):
            tap.create(sandbox.ifname, conf.options)
    except tap.LabelError as error:
        details = "the label must be valid, and the policy must allow this process the dyntransition to it"
        raise internal(f"failed set socket label: {reason(error.errno)}", details) from error
    created = sandbox.get_link()
    if not (conf.mac or conf.mtu or bridge):
        return created
    request = link.set_request(created, mac=conf.mac, mtu=conf.mtu, master=bridge.index if bridge else 0)
    sandbox.socket.change(request)
    return created._replace(mac=format_mac(conf.mac) if conf.mac else created.mac, mtu=conf.mtu or created.mtu)


def check(sandbox: Sandbox, container_link: Link, conf: TapConf) -> None:
    """Checks that the interface is the tap device of the configuration, on its bridge; raises CniError, KernelError."""
    name = sandbox.ifname
    state = tap.get_state(sandbox.socket, container_link) if container_link.kind == tap.KIND else None
    if container_link.kind != tap.KIND or (state and not state.is_tap):
        details = f"it is {container_link.kind or 'unknown'}; {RECREATE_HINT}"
        raise internal(f"Error: Container interface {name} not of type tap", details)
    if state is not None:
        options = conf.options
        for key, desired, existing in (
            ("multiQueue", options.multi_queue, state.multi_queue),
            ("owner", options.owner, state.owner),
            ("group", options.group, state.group),
        ):
            if desired != existing:
                msg = f'Tap {name} has another "{key}" than the configuration'
                raise internal(msg, f"it is {_shown(existing)}, not {_shown(desired)}; {RECREATE_HINT}")
        if not state.is_persistent:
            raise internal(f"Tap {name} is not persistent", RECREATE_HINT)
    bridge = find_bridge(sandbox, conf.bridge)
    if bridge is not None and container_link.master != bridge.index:
        details = f'in the container: ip link set "{name}" master "{bridge.name}"'
        raise internal(f'Tap {name} is not a port of bridge "{bridge.name}"', details)


def refuse_label(conf: TapConf) -> None:
    """Raises CniError(7) for a label on a host without SELinux, with the text of the reference plugin."""
    if conf.options.selinux_label and not selinux.is_enabled():
        details = 'SELinux is not enabled on this host: remove "selinuxContext"'
        raise invalid_conf(f"failed set socket label: {reason(errno.EOPNOTSUPP)}", details)


def _shown(value: int | None) -> str:
    return "unset" if value is None else str(value).lower()
