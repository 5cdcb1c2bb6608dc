"""Addresses from a pool of the cluster: ADD and STATUS of a network with "pool", from the blocks that this node has.

One rule: only addresses of granted blocks are allocated. Without a free one ADD ends with code 11 (try again later) and
STATUS with code 50; the message has the numbers of this node's blocks and the agent's last contact with the store.
"""

from __future__ import annotations

from collections.abc import Callable

from attachment.cache import ResultCache
from cni.args import CmdArgs
from cni.conf import Attachment
from cni.errors import CniError, Code
from cni.result import IPConfig
from ipam.host_local import allocator, grants
from ipam.host_local.allocator import ExhaustedError
from ipam.host_local.conf import HostLocalConf
from ipam.host_local.grants import GrantedPool, Grants
from ipam.host_local.store import Reservations, ReservationStore

_HINT = "podwire-agent claims another block, if the pool has a free one"


class _MissingBlockError(CniError):
    """The CniError(11) for a pool of which this node has no granted block."""


def allocate(
    reservations: Reservations,
    args: CmdArgs,
    network: str,
    conf: HostLocalConf,
    cache: Callable[[], ResultCache],
) -> tuple[IPConfig, ...]:
    """Reserves an address of each IP version of the pool, as allocator.allocate.

    Without a free address raises CniError(11), and counts this ADD for the agent, which then claims a block.
    """
    node_grants = grants.read(conf.data_dir, network)
    names = args.cni_args("IP", "K8S_POD_NAMESPACE", "K8S_POD_NAME")
    namespace = names.get("K8S_POD_NAMESPACE", "")
    pool = node_grants.pool_of(conf.pool, namespace)
    attachment = Attachment(args.container_id, args.ifname)
    if pool.is_sticky:
        pod = f"{namespace}/{names.get('K8S_POD_NAME', '')}"
        return _allocate_sticky(reservations, attachment, node_grants, pool, pod, conf, cache)
    try:
        _refuse_missing(node_grants, pool)
        return allocator.allocate(reservations, attachment, pool.range_sets, conf.requested, cache)
    except ExhaustedError as error:
        grants.count_demand(conf.data_dir, network, pool.name)
        blocks = len(error.range_set.ranges)
        msg = f"pool {pool.name} has no free address on this node: {error.usage}; {blocks} blocks"
        raise CniError(Code.TRY_AGAIN_LATER, msg, f"{node_grants}; {_HINT}") from error
    except _MissingBlockError:
        grants.count_demand(conf.data_dir, network, pool.name)
        raise


def _allocate_sticky(
    reservations: Reservations,
    attachment: Attachment,
    node_grants: Grants,
    pool: GrantedPool,
    pod: str,
    conf: HostLocalConf,
    cache: Callable[[], ResultCache],
) -> tuple[IPConfig, ...]:
    """Reserves the addresses that belong to a pod, and no other; raises CniError(11) with the reason without them."""
    range_sets = pool.by_pod.get(pod, ())
    if {range_set.version for range_set in range_sets} != set(pool.versions):
        reason = node_grants.waiting.get(pod) or "podwire-agent has not claimed it yet"
        msg = f"pod {pod} waits for its address of pool {pool.name}: {reason}"
        raise CniError(Code.TRY_AGAIN_LATER, msg, f"{node_grants}; the agent watches pods only with --sticky")
    try:
        return allocator.allocate(reservations, attachment, range_sets, conf.requested, cache)
    except ExhaustedError as error:
        address = str(error.range_set).partition("-")[0]
        msg = f"pod {pod} waits for its address {address}: its former container still has it"
        raise CniError(Code.TRY_AGAIN_LATER, msg, "the runtime runs DEL for that container") from error


def check(store: ReservationStore, name: str, network: str, data_dir: str, cache: Callable[[], ResultCache]) -> None:
    """Checks that the pool `name` has a free address of each IP version on this node; raises CniError(50)."""
    try:
        node_grants = grants.read(data_dir, network)
        pool = node_grants.pool_of(name, "")
        _refuse_missing(node_grants, pool)
    except CniError as error:
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, error.msg, error.details) from error
    for number, range_set in enumerate(pool.range_sets):
        full = store.check_usable() and allocator.exhaustion_error(store, number, range_set, cache)
        if full:
            raise CniError(Code.PLUGIN_NOT_AVAILABLE, f"pool {pool.name}: {full.msg}", f"{node_grants}; {_HINT}")


def _refuse_missing(node_grants: Grants, pool: GrantedPool) -> None:
    """Raises _MissingBlockError if an IP version of the pool has no granted block on this node."""
    present = {range_set.version for range_set in pool.range_sets}
    missing = [f"IPv{version}" for version in pool.versions if version not in present]
    if missing or not present:
        waiting = f"{pool.inactive} blocks are not granted yet; " if pool.inactive else ""
        msg = f"this node has no granted block of pool {pool.name}{f' for {missing[0]}' if missing else ''}"
        raise _MissingBlockError(Code.TRY_AGAIN_LATER, msg, f"{waiting}{node_grants}")
