"""The options for addresses from the pools of a cluster. Without --store the node uses podCIDRs."""

from __future__ import annotations

import argparse
import re
from typing import NamedTuple

from cni.address import Address, parse_ip

KUBERNETES, ETCD = STORES = ("kubernetes", "etcd")
DELETED, MANUAL = RECLAIM = ("deleted", "manual")
_SPACE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # a DNS label


class Etcd(NamedTuple):
    """The options for etcd: endpoints (URLs), the files for TLS, and a user with a password file."""

    endpoints: tuple[str, ...]
    ca_file: str
    cert_file: str
    key_file: str
    user: str
    password_file: str


class PoolOptions(NamedTuple):
    """The options: `store` is "" without pools.

    `networks` are further networks of this node and their pools; `addresses` are this node's, where no API server has
    them. `machine` identifies the hardware, "" for its product UUID; without one, `machine_address` and the MAC
    address of its link identify it. `reclaim` says whether a deleted Node is a proof, and `reclaim_delay_s` after how
    long. With `is_sticky` this node's pods are watched, for sticky pools.
    """

    store: str
    space: str
    etcd: Etcd
    networks: tuple[tuple[str, str], ...]
    addresses: tuple[Address, ...]
    state_dir: str
    machine: str
    reclaim: str
    reclaim_delay_s: float
    is_sticky: bool = False
    machine_address: Address | None = None

    @property
    def has_kubernetes(self) -> bool:
        """Whether the cluster has an API server: without --node-address."""
        return not self.addresses


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options to a parser."""
    group = parser.add_argument_group("addresses from the pools of the cluster, in place of podCIDRs")
    meaning = "where the pools are: custom resources of the API server, or etcd (default: no pools)"
    group.add_argument("--store", choices=STORES, default="", help=meaning)
    group.add_argument(
        "--space", default="default", type=_space_name, metavar="NAME", help="the space of pools (default: default)"
    )
    _add_etcd(group)
    group.add_argument(
        "--pool-network",
        dest="networks",
        action="append",
        default=[],
        type=_pool_network,
        metavar="NETWORK=POOL",
        help="another network of this node and its pool; may be repeated (default: the network of --conf only)",
    )
    group.add_argument(
        "--node-address",
        dest="addresses",
        action="append",
        default=[],
        type=_address,
        metavar="ADDRESS",
        help="this node's address, for a cluster without an API server; may be repeated for IPv4 and IPv6",
    )
    _add_machine(group)
    group.add_argument(
        "--reclaim",
        choices=RECLAIM,
        default=DELETED,
        help="deleted: deleting a Node states that its machine is off, and frees its blocks (default); "
        "manual: only `podwire ipam reclaim` frees them",
    )
    meaning = "watch the pods of this node, which keep their addresses in sticky pools; needs the right to list pods"
    group.add_argument("--sticky", action="store_true", help=meaning)
    meaning = "for how long a Node must have been deleted (default 300)"
    group.add_argument(
        "--reclaim-delay", dest="reclaim_delay_s", type=float, default=300.0, metavar="SECONDS", help=meaning
    )


def parse_options(parsed: argparse.Namespace) -> PoolOptions:
    """Returns the options of a parsed command line; raises ValueError for an invalid combination."""
    etcd = Etcd(
        tuple(parsed.etcd),
        parsed.etcd_ca_file,
        parsed.etcd_cert_file,
        parsed.etcd_key_file,
        parsed.etcd_user,
        parsed.etcd_password_file,
    )
    options = PoolOptions(
        store=parsed.store,
        space=parsed.space,
        etcd=etcd,
        networks=tuple(parsed.networks),
        addresses=tuple(parsed.addresses),
        state_dir=parsed.state_dir,
        machine=parsed.machine,
        reclaim=parsed.reclaim,
        reclaim_delay_s=parsed.reclaim_delay_s,
        is_sticky=parsed.sticky,
        machine_address=parsed.machine_address or next(iter(parsed.addresses), None),
    )
    if problem := _problem(options):
        raise ValueError(problem)
    return options


def _add_etcd(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--etcd", action="append", default=[], metavar="URL", help="an endpoint of etcd; may be repeated"
    )
    for name, what in (
        ("ca-file", "certificate authority"),
        ("cert-file", "this client's certificate"),
        ("key-file", "the certificate's key"),
        ("user", "name of the user"),
        ("password-file", "the user's password"),
    ):
        group.add_argument(f"--etcd-{name}", default="", metavar="NAME" if name == "user" else "FILE", help=what)


def _add_machine(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--state-dir", default="/var/lib/podwire", metavar="PATH", help="directory of this node's ID")
    group.add_argument("--machine", default="", metavar="ID", help="identifies the machine (default: product UUID)")
    group.add_argument(
        "--machine-address",
        type=_address,
        metavar="ADDRESS",
        help="identifies a machine without a product UUID, with its link's MAC address (default: --node-address)",
    )


def _problem(options: PoolOptions) -> str:
    """Returns what is wrong with the options, "" for nothing."""
    etcd = options.etcd
    if options.store == ETCD and not etcd.endpoints:
        return "--store etcd needs --etcd URL"
    if options.store != ETCD and any(etcd):
        return "the options --etcd and --etcd-... need --store etcd"
    if bool(etcd.cert_file) != bool(etcd.key_file):
        return "--etcd-cert-file and --etcd-key-file belong together"
    if bool(etcd.user) != bool(etcd.password_file):
        return "--etcd-user and --etcd-password-file belong together"
    if options.addresses and options.store != ETCD:
        return "--node-address is for a cluster without an API server: it needs --store etcd"
    if options.is_sticky and (options.addresses or not options.store):
        return "--sticky needs --store and an API server, which has the pods"
    if options.networks and not options.store:
        return "--pool-network needs --store"
    return ""


def _space_name(text: str) -> str:
    if not _SPACE_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name of 1 to 63 of a-z, 0-9 and -, without - at its ends")
    return text


def _pool_network(text: str) -> tuple[str, str]:
    network, equals, pool = text.partition("=")
    if not (network and equals and pool) or "/" in network:
        raise argparse.ArgumentTypeError(f"{text!r} is not NETWORK=POOL")
    return network, pool


def _address(text: str) -> Address:
    try:
        return parse_ip(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
