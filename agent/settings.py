"""The agent's settings: command-line options, and environment variables that a DaemonSet can set."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from agent.api_server import SERVICE_ACCOUNT
from agent.log import LEVELS
from agent.pools import options as pool_options
from agent.pools.options import PoolOptions
from agent.route_plan import MODES
from cni.address import Address, parse_ip

_IDENTIFIERS = range(1 << 24)  # a VXLAN network identifier has 24 bits (RFC 7348)
_PORTS = range(1, 1 << 16)
_NAME_BYTES = 15  # of an interface
ON, STRICT = "on", "strict"  # values of --network-policy; "" is off


class Settings(NamedTuple):
    """The settings; times are in seconds. docs/agent.md and `podwire-agent --help` explain them."""

    node_name: str
    server: str
    kubeconfig: str
    ca_file: str
    token_file: str
    routes: str
    vxlan_id: int
    vxlan_port: int
    vxlan_checksum_offload: bool
    underlay: Address | str
    podwire: str
    conf: str
    bin_dir: str
    conf_dir: str
    cache_dir: str
    run_dir: str
    listen: str
    gc_interval_s: float
    log_level: str
    install: bool
    dry_run: bool
    once: bool
    remove: bool
    network_policy: str
    check_established: bool
    pools: PoolOptions

    @property
    def enforces_policies(self) -> bool:
        """Whether the agent enforces network policies: only one that stays."""
        return bool(self.network_policy) and not (self.once or self.dry_run)


def parse(arguments: Sequence[str], env: Mapping[str, str]) -> Settings:
    """Returns the settings; prints an error and exits with status 2 for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="podwire-agent",
        description="Maintains the pod network of a Kubernetes node: the plugins and their configuration, the routes "
        "to the pods of the other nodes, and the networks that are not masqueraded. docs/agent.md explains it.",
        allow_abbrev=False,
    )
    _add_api(parser, env)
    _add_routes(parser)
    _add_node(parser)
    pool_options.add_options(parser)
    _add_operation(parser)
    parsed = parser.parse_args(arguments)
    if not parsed.node_name and not parsed.remove:
        parser.error("the name of this node's Node object is missing: set --node-name or NODE_NAME")
    try:
        pools = pool_options.parse_options(parsed)
    except ValueError as error:
        parser.error(str(error))
    if parsed.network_policy and not pools.has_kubernetes:
        parser.error("--network-policy needs an API server, which has the policies: not with --node-address")
    if parsed.check_established and not parsed.network_policy:
        parser.error("--check-established needs --network-policy")
    values = {name: value for name, value in vars(parsed).items() if name in Settings._fields}
    return Settings(**values, pools=pools)


def _add_api(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    group = parser.add_argument_group("Kubernetes API")
    group.add_argument("--node-name", default=env.get("NODE_NAME", ""), metavar="NAME", help="this node ($NODE_NAME)")
    group.add_argument(
        "--server",
        default=env.get("PODWIRE_API_SERVER", ""),
        metavar="URL",
        help="the API server ($PODWIRE_API_SERVER; default: that of the kubeconfig, else $KUBERNETES_SERVICE_HOST)",
    )
    group.add_argument(
        "--kubeconfig",
        default=env.get("PODWIRE_KUBECONFIG", ""),
        metavar="FILE",
        help="kubelet's kubeconfig: only its server and CA are used ($PODWIRE_KUBECONFIG)",
    )
    group.add_argument("--ca-file", default="", metavar="FILE", help=f"default: {SERVICE_ACCOUNT}/ca.crt")
    group.add_argument(
        "--token-file", default=f"{SERVICE_ACCOUNT}/token", metavar="FILE", help="read again as it changes"
    )


def _add_routes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("routes to the other nodes")
    meaning = "auto: direct to nodes on the same link, else through VXLAN (default)"
    group.add_argument("--routes", choices=MODES, default="auto", help=meaning)
    group.add_argument("--vxlan-id", type=_in(_IDENTIFIERS), default=112, metavar="VNI", help="default 112")
    group.add_argument("--vxlan-port", type=_in(_PORTS), default=4789, metavar="PORT", help="UDP port, default 4789")
    group.add_argument(
        "--no-vxlan-checksum-offload",
        dest="vxlan_checksum_offload",
        action="store_false",
        help="compute checksums before the tunnel, for network adapters that compute wrong ones",
    )
    meaning = "where this node sends VXLAN packets, if its InternalIP is not its own (NAT); default: its InternalIP"
    group.add_argument("--underlay", type=_underlay, default="", metavar="ADDRESS|INTERFACE", help=meaning)


def _add_node(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("this node's plugins and network")
    paths = (
        ("podwire", "/opt/podwire/podwire", "the executable to install, whose commands the agent runs"),
        ("conf", "/etc/podwire/10-podwire.conflist", "the network; its host-local gets the node's podCIDRs"),
        ("bin-dir", "/opt/cni/bin", "the directory of plugins"),
        ("conf-dir", "/etc/cni/net.d", "the directory of networks"),
        ("cache-dir", "/var/lib/cni", "libcni's cache of attachments"),
        ("run-dir", "/run/podwire", "the directory of the lock and the socket"),
    )
    for name, default, meaning in paths:
        group.add_argument(f"--{name}", default=default, metavar="PATH", help=f"{meaning} ({default})")
    group.add_argument(
        "--network-policy",
        nargs="?",
        choices=(ON, STRICT),
        const=ON,
        default="",
        help='enforce NetworkPolicies for the pods of networks with "networkPolicy": true; strict: each pod starts '
        "only with policies that are as new as the pod. Not with --once and --dry-run",
    )
    meaning = "with --network-policy: a changed policy also decides about established connections"
    group.add_argument("--check-established", action="store_true", help=meaning)
    group.add_argument("--no-install", dest="install", action="store_false", help="install neither plugins nor network")


def _add_operation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("operation")
    group.add_argument(
        "--listen",
        default="",
        metavar="ADDRESS",
        help="for /healthz, /readyz and /metrics: HOST:PORT or the path of a socket (RUN_DIR/agent.sock)",
    )
    hours = "hours between two runs of `podwire gc` (default 1), 0 for none"
    group.add_argument("--gc-interval", dest="gc_interval_s", type=_hours, default=3600.0, metavar="HOURS", help=hours)
    group.add_argument("--log-level", choices=LEVELS, default="info")
    modes = group.add_mutually_exclusive_group()
    modes.add_argument("--dry-run", action="store_true", help="print what would be changed now, change nothing, exit")
    modes.add_argument("--once", action="store_true", help="make all changes once and exit; status 1 if not ready")
    modes.add_argument(
        "--remove",
        action="store_true",
        help="remove the agent's objects, restore the files from before podwire (not with --no-install), and exit",
    )


def _underlay(text: str) -> Address | str:
    """Returns an address, or the name of an interface; "" for neither, as from an empty variable."""
    try:
        return parse_ip(text)
    except ValueError:
        if len(text.encode()) > _NAME_BYTES or "/" in text or any(map(str.isspace, text)):
            raise argparse.ArgumentTypeError(f"{text!r} is neither an address nor the name of an interface") from None
        return text


def _in(allowed: range) -> Callable[[str], int]:
    """Returns a converter for the numbers of a range."""

    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) in allowed):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {allowed[0]} to {allowed[-1]}")
        return int(text)

    return convert


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = -1.0
    if not 0 <= hours < 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours")
    return hours * 3600


def socket_path(settings: Settings) -> str:
    """Returns where the agent listens by default."""
    return os.path.join(settings.run_dir, "agent.sock")
