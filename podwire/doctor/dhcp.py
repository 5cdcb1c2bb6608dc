"""Checks dhcp's daemon and its leases: the daemon answers, lease files can be read, no lease has expired.

The checks connect to the daemon's socket, and send nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from shlex import quote

from ipam.dhcp import conf as dhcp_conf
from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.node import CheckedNode
from podwire.doctor.shell_command import ShellCommand
from podwire.node import dhcp_leases
from podwire.node.dhcp_leases import LeaseState

_GROUP = "addresses"
_LIMIT_S = 5.0
_UNITS = tuple(
    f"{directory}/cni-dhcp.socket"
    for directory in ("/etc/systemd/system", "/run/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
)

_UNREACHABLE = Fault(
    "dhcp-daemon-unreachable",
    Severity.PROBLEM,
    "a network's addresses come from dhcp, and its daemon cannot be reached: each ADD fails, and no lease is renewed",
)
_UNREADABLE = Fault(
    "dhcp-lease-unreadable",
    Severity.WARNING,
    "a lease file of dhcp cannot be read: after a restart the daemon does not renew the lease",
)
_EXPIRED = Fault(
    "dhcp-lease-expired",
    Severity.PROBLEM,
    "a DHCP lease has expired: no server renewed it, or the daemon was not running; the pod has lost its address",
)


def _daemon(node: CheckedNode) -> Iterator[Finding]:
    users: dict[str, list[str]] = {}
    for network, net_conf in dhcp_leases.list_dhcp_confs(node.networks):
        users.setdefault(dhcp_conf.socket_path(net_conf), []).append(network.name)
    for path, names in users.items():
        problem = _why_unreachable(path)
        if problem:
            yield _UNREACHABLE.finding(", ".join(dict.fromkeys(names)), f"{path}: {problem}", _start_command(path))


def _why_unreachable(path: str) -> str:
    """Returns why a socket cannot be connected to, "" if it can; raises PermissionError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(_LIMIT_S)
        try:
            probe.connect(path)
        except PermissionError:
            raise
        except TimeoutError:
            return f"the daemon does not accept a connection within {_LIMIT_S:.0f} s"
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _start_command(path: str) -> str:
    if path == dhcp_conf.SOCKET_PATH and any(os.path.exists(unit) for unit in _UNITS):
        return ShellCommand("systemctl enable --now cni-dhcp.socket cni-dhcp.service")
    return f"start the daemon, or have a service manager start it: /opt/cni/bin/dhcp daemon -socketpath {quote(path)}"


def _leases(node: CheckedNode) -> Iterator[Finding]:
    used = [*node.networks, *(one.network for one in node.known if one.network)]
    leases, unreadable = dhcp_leases.read_leases(dhcp_leases.list_data_dirs(used), node.network)
    for item in unreadable:
        fix = f"create the pod again, then delete the file: rm {quote(item.path)}"
        yield _UNREADABLE.finding("dhcp", f"{item.path} cannot be read: {item.problem}", fix)
    for lease in leases:
        if lease.state is LeaseState.EXPIRED:
            owner = f"{lease.network}: {lease.attachment.container_id} {lease.attachment.ifname}"
            text = f"the lease of {lease.address} from {lease.server} expired {lease.expiry}"
            yield _EXPIRED.finding(
                owner,
                text,
                "check the DHCP server and the daemon's log (journalctl --unit cni-dhcp), then create the pod again",
            )


CHECKS = (
    Check(_GROUP, "dhcp", "dhcp's daemon can be reached, or no network needs it", _daemon, (_UNREACHABLE,)),
    Check(_GROUP, "leases", "no DHCP lease has expired", _leases, (_UNREADABLE, _EXPIRED)),
)
