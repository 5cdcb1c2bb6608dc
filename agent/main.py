"""The program podwire-agent: starts the parts, and ends.

SIGTERM and SIGINT end it; routes, network and pods stay as they are, and the next start continues with them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NoReturn

from agent import http_server
from agent.agent import Agent, Parts
from agent.api_server import (
    SERVICE_ACCOUNT,
    Server,
    addresses_of,
    server_from_environment,
    server_from_kubeconfig,
    server_from_url,
)
from agent.events import EventRecorder, NoEvents
from agent.http_server import Answer
from agent.inbox import Inbox
from agent.instance_lock import InstanceLock
from agent.kubernetes import ApiClient
from agent.log import Log
from agent.metrics import Metrics
from agent.node import Node
from agent.node_files import masquerade_backends, uninstall
from agent.object_source import kubernetes_nodes
from agent.object_watch import ObjectEvent, ObjectWatch
from agent.policy import service as policy_service
from agent.policy.service import PolicyService
from agent.pools.reports import PoolEvent
from agent.pools.service import PoolService
from agent.readiness import POLICIES
from agent.route_plan import RouteOptions
from agent.routes import Routes
from agent.settings import Settings, parse, socket_path
from attachment.masquerade import cluster as masquerade
from attachment.masquerade.cluster import ClusterNetworks
from cni.errors import CniError, Code
from kernel.errors import KernelError
from process import record, signals
from process.loop import Loop, now
from process.signals import Terminated
from process.version import __version__

_ONCE_LIMIT_S, _ONCE_CHECK_S = 120.0, 0.1
_SERVER_FIX = (
    "set --server https://HOST:PORT, or --kubeconfig to kubelet's file (kubeadm: /etc/kubernetes/kubelet.conf)"
)


_Service = ObjectWatch[Node] | PoolService | PolicyService


class _Finished(BaseException):
    """The work of --once or --dry-run is done; raised out of the loop."""


def console() -> NoReturn:
    """Runs the agent as a program."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs the agent; returns the exit status."""
    settings = parse(arguments, os.environ)
    log = Log(settings.log_level, __version__, settings.node_name)
    try:
        signals.block()
        with nullcontext() if settings.dry_run else InstanceLock(os.path.join(settings.run_dir, "agent.lock")):
            return _remove(settings, log) if settings.remove else _run(settings, log)
    except Terminated:
        log.write("info", "ended by a signal; routes, network and pods stay")
        return 0
    except CniError as error:
        log.write("error", error.msg, details=error.details)
        return 1


def _run(settings: Settings, log: Log) -> int:
    """Runs until a signal or, with --once and --dry-run, until the work is done."""
    loop = Loop()
    server = _server(settings) if settings.pools.has_kubernetes else None
    client = ApiClient(server, Path(settings.token_file) if settings.token_file else None) if server else None
    networks = ClusterNetworks(create=masquerade_backends(settings.conf))
    events = EventRecorder(client or NoEvents(), settings.node_name, lambda text: log.write("warning", text))
    parts = Parts(log, Metrics(__version__), _new_routes(settings, log), networks, events)
    agent = Agent(settings, loop, parts, addresses_of(server) if server else ())
    nodes = _create_nodes(settings, loop, agent, parts, client)
    services = [nodes, *_create_policies(settings, loop, agent, parts, client)]

    def reconnect(*watches: _Service) -> None:
        if client:
            client.forget_connections()
        for watch in watches:
            watch.reconnect()

    agent.on_address_change = partial(reconnect, *services)
    agent.status.is_watching = lambda: all(service.is_alive() for service in services)
    agent.contact.on_silence = partial(reconnect, nodes.watch if isinstance(nodes, PoolService) else nodes)
    if settings.once or settings.dry_run:
        _end_when_done(loop, agent, now() + _ONCE_LIMIT_S)
    else:
        _serve(settings, agent, services)
    agent.start()
    if not (settings.network_policy or settings.once or settings.dry_run):
        _delete_filter(log)
    log.write("info", "started", routes=settings.routes, server=server.url if server else "")
    events.start()
    for service in services:
        service.start()
    try:
        loop.run()
    except _Finished:
        return 0 if agent.status.is_ready or settings.dry_run else 1
    finally:
        for service in services:
            service.stop()
        events.stop()
    return 0


def _create_nodes(
    settings: Settings, loop: Loop, agent: Agent, parts: Parts, client: ApiClient | None
) -> ObjectWatch[Node] | PoolService:
    """Returns the source of the cluster's nodes: Node objects with podCIDRs, or the entries of a store of pools."""
    inbox: Inbox[ObjectEvent[Node]] = Inbox(loop, agent.handle)

    def on_contact() -> None:
        agent.contact.note_answer()
        parts.metrics.contact.set_to_current_time()

    if not settings.pools.store:
        assert client  # only a cluster with pools may have no API server
        return ObjectWatch(kubernetes_nodes(client), inbox.put, on_contact=on_contact)
    reports: Inbox[PoolEvent] = Inbox(loop, agent.handle_pools)

    def set_uid(uid: str) -> None:
        parts.events.node_uid = uid

    return PoolService(settings, client, reports.put, inbox.put, on_contact, set_uid, parts.log.write)


def _create_policies(
    settings: Settings, loop: Loop, agent: Agent, parts: Parts, client: ApiClient | None
) -> Iterator[PolicyService]:
    """Yields the part that enforces network policies, with --network-policy."""
    if not settings.enforces_policies:
        return
    assert client  # the options demand an API server

    def report(problem: str, note: str) -> None:
        agent.status.set_condition(POLICIES, problem)
        agent.status.set_note(POLICIES, note)

    yield PolicyService(settings, loop, client, parts.metrics.add_policies(), report, parts.log)


def _serve(settings: Settings, agent: Agent, services: Iterable[_Service]) -> None:
    """Starts the HTTP server; the pages and actions for the operator's tool are on the Unix socket, only root's."""
    path = socket_path(settings)
    listen = settings.listen or path
    admins = [service.admin for service in services if not isinstance(service, ObjectWatch)]
    if admins:
        pages, actions = agent.status.pages(), dict[str, Callable[[bytes], Answer]]()
        for admin in admins:
            pages |= admin.pages()
            actions |= admin.actions()
        http_server.start(path, pages, actions)
    if listen != path or not admins:
        http_server.start(listen, agent.status.pages())


def _end_when_done(loop: Loop, agent: Agent, end_s: float) -> None:
    """Ends the loop when the agent has done its work, or at `end_s`."""
    if agent.is_done or now() > end_s:
        raise _Finished
    loop.call_at(now() + _ONCE_CHECK_S, partial(_end_when_done, loop, agent, end_s))


def _delete_filter(log: Log) -> None:
    """Deletes the packet filter of an agent that enforced network policies."""
    try:
        if policy_service.delete_filter():
            log.write("warning", "network policies are off: their packet filter is deleted")
    except KernelError as error:
        log.write("warning", f"cannot delete the packet filter of network policies: {error}")


def _remove(settings: Settings, log: Log) -> int:
    """Removes the agent's objects in the kernel, and restores the files that were there before podwire."""
    with record.recording() as recorded:
        _new_routes(settings, log).remove()
        remaining = masquerade.remove()
        policy_service.remove()
    log.write_changes("removed", recorded.changes)
    if remaining:
        log.write("info", "these stay while rules of pods refer to them", objects=remaining)
    if settings.install:
        log.write("info", "podwire uninstall", output=uninstall(settings).splitlines())
    return 0


def _server(settings: Settings) -> Server:
    """Returns the API server of the settings, else of the environment; raises CniError(7)."""
    ca_file = Path(settings.ca_file) if settings.ca_file else SERVICE_ACCOUNT / "ca.crt"
    try:
        if settings.server:
            return server_from_url(settings.server, ca_file)
        if settings.kubeconfig:
            return server_from_kubeconfig(Path(settings.kubeconfig))
        server = server_from_environment(os.environ, ca_file)
    except (OSError, ValueError) as error:
        raise CniError(Code.INVALID_NETWORK_CONFIG, f"the API server is unknown: {error}", _SERVER_FIX) from error
    if server is None:
        msg = "the API server is unknown: KUBERNETES_SERVICE_HOST is not set"
        raise CniError(Code.INVALID_NETWORK_CONFIG, msg, _SERVER_FIX)
    return server


def _new_routes(settings: Settings, log: Log) -> Routes:
    options = RouteOptions(
        mode=settings.routes,
        vni=settings.vxlan_id,
        port=settings.vxlan_port,
        checksum_offload=settings.vxlan_checksum_offload,
        underlay=settings.underlay if isinstance(settings.underlay, str) else settings.underlay.packed,
    )
    return Routes(options, lambda text: log.write("info", text))
