"""A binding: the leases of one interface, with the file that stores them and the calls that wait for them.

One rule: a lease file exists before ADD returns its lease, and until the lease is released. So a daemon that is killed
at any moment finds every lease in use when it starts again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cni.address import format_ip
from cni.errors import CniError
from cni.result import Result
from ipam.dhcp import client6
from ipam.dhcp import conf as dhcp_conf
from ipam.dhcp.client4 import Identity, Timing
from ipam.dhcp.conf import DhcpConf
from ipam.dhcp.daemon import interface
from ipam.dhcp.daemon.interface import GoneError, LeasedInterface
from ipam.dhcp.daemon.session import IPV4, IPV6, Session
from ipam.dhcp.ipv4_client import Ipv4Client
from ipam.dhcp.ipv6_client import Ipv6Client
from ipam.dhcp.lease import Lease
from ipam.dhcp.lease6 import Lease6
from ipam.dhcp.leases import AnyLease, result_of, without_time
from ipam.dhcp.options import INFINITE_S, INTERFACE_MTU
from ipam.dhcp.record import LeaseOwner, LeaseRecord
from ipam.dhcp.router_advertisement import MTU_MIN
from ipam.dhcp.store import LeaseStore
from process.loop import Loop, Timer, now
from process.stderr import one_line
from process.values import replace

_FAILURES = (CniError, OSError)  # KernelError is a CniError

_MARGIN_S = 10.0  # for the detection of a conflict, which may begin just before an ADD's time has passed
_WATCH_S = 1.0  # between two looks at the interface during an ADD
_STORE_AGAIN_S = 10.0  # after a lease file could not be written

# The answer to an ADD: the result, or the text of the error.
Respond = Callable[[Result | str], None]


class DaemonSettings(NamedTuple):
    """The daemon's settings: `host_prefix` precedes paths of namespaces, `boot_id` is the present boot's.

    `namespaces` returns the paths of all leases' namespaces.
    """

    store: LeaseStore
    boot_id: str
    machine_id: str
    namespaces: Callable[[], Iterable[str]] = tuple
    host_prefix: str = ""
    broadcast: bool = False
    timing: Timing = Timing()


def log(name: str, text: str) -> None:
    """Writes one line to stderr, in the reference's form."""
    print(one_line(f"{time.strftime('%Y/%m/%d %H:%M:%S')} {name}: {text}"), file=sys.stderr, flush=True)


class Binding:
    """The leases of `owner`'s interface. `forget` is called when the binding has ended; it has no lease then."""

    def __init__(
        self,
        owner: LeaseOwner,
        conf: DhcpConf,
        settings: DaemonSettings,
        loop: Loop,
        count: Callable[[str], None],
        forget: Callable[[], None],
    ) -> None:
        self.owner = owner
        self.count = count
        self._conf = conf
        self._settings = settings
        self._loop = loop
        self._forget = forget
        self._place: LeasedInterface | None = None
        self._sessions: dict[int, Session] = {}
        self._leases: dict[int, AnyLease] = {}  # stored, and configured on the interface, by IP version
        self._lost: dict[int, AnyLease] = {}  # stored only: the next daemon tries to get them again
        self._why_no_lease = "it is being acquired"
        self._waiting: list[Respond] = []
        self._give_up_at = 0.0  # of an ADD
        self._watch: Timer | None = None  # during an ADD
        self._store_again: Timer | None = None

    @property
    def netns(self) -> str:
        """The path of the interface's namespace, as this process sees it."""
        return self._settings.host_prefix + self.owner.netns

    @property
    def states(self) -> list[str]:
        """The states of the clients, for metrics."""
        return [session.state for session in self._sessions.values()]

    def acquire(self, respond: Respond) -> None:
        """Answers an ADD with the leases, now or when servers have granted them; raises CniError, OSError.

        A second ADD of an interface gets the same leases, without a packet.
        """
        if self._is_complete() and not self.check():
            respond(self._result())
            return
        if self._waiting and not isinstance(self._find_problem(), GoneError):
            self._waiting.append(respond)
            return
        self._respond("the interface was created again")
        try:
            target = interface.find(self.netns, self.owner.ifname, ipv6=bool(self._conf.ipv6_mode))
        except _FAILURES:
            if self._sessions:
                self.release()
            raise
        for session in self._sessions.values():
            session.stop()
        self._create_sessions(LeasedInterface(self.netns, target, self._settings.namespaces))
        self._waiting.append(respond)
        self._give_up_at = now() + self._settings.timing.total_s + _MARGIN_S
        self._watch_later()
        self.log("acquiring lease")
        for session in list(self._sessions.values()):
            if self._waiting:  # none of them has failed
                session.start()

    def resume(self, record: LeaseRecord) -> None:
        """Continues to maintain stored leases after a restart of the daemon, or releases them.

        They are released if a DEL has left a note, or if the interface was deleted meanwhile.
        """
        self._create_sessions(LeasedInterface(self.netns, record.target, self._settings.namespaces))
        same_boot = record.boot_id == self._settings.boot_id != ""
        for version, lease in ((4, record.ipv4), (6, record.ipv6)):
            if lease is not None and version in self._sessions:
                if lease.lifetime_s:
                    self._leases[version] = lease
                else:
                    self._lost[version] = lease
                    self._configure(version, lease, None)  # the last daemon may have ended before it did so
                self._sessions[version].resume(lease, same_boot=same_boot)
        if self._settings.store.must_release(record):
            self.release()
            return
        problem = self._find_problem()
        if isinstance(problem, GoneError):
            self.gone()
        elif problem is not None:
            self.log(f"cannot look at the interface: {problem}")

    def check(self) -> str:
        """Returns why the interface does not have its leases, "" if it does."""
        if not self._is_complete():
            return f"there is no lease: {self._why_no_lease}"
        problem = self._find_problem()
        if isinstance(problem, GoneError):
            return f'interface "{self.owner.ifname}" no longer exists'
        return f'cannot look at interface "{self.owner.ifname}": {problem}' if problem else ""

    def withdraw(self, respond: Respond) -> None:
        """Ends an ADD that no client waits for any longer; its runtime does not know the lease."""
        if respond in self._waiting:
            self._waiting.remove(respond)
            if not self._waiting:
                self.failed("the plugin has gone before there was a lease")

    def release(self, answer: str = "the lease was released") -> None:
        """Releases the leases, and ends; `answer` is for calls that wait for them."""
        self.log("releasing lease")
        store, key = self._settings.store, self.owner.key
        try:
            store.note_release(*key)  # a daemon that is killed now releases it again
        except OSError as error:
            self.log(f"cannot note the release: {error}")
        for session in self._sessions.values():
            session.release()
        try:
            store.delete(*key)
        except OSError as error:
            self.log(f"cannot delete the lease file: {error}")
        self._leases.clear()
        self._lost.clear()
        self._cancel_store()
        self._respond(answer)
        self._forget()

    def granted(self, version: int, lease: AnyLease) -> None:
        """Stores a lease and answers ADD when it is the last, or applies what a renewal changed to the interface."""
        before, is_first = self._leases.get(version), bool(self._waiting)
        self._log_grant(lease, "acquired" if is_first else "renewed")
        self._leases[version] = lease
        self._lost.pop(version, None)
        if is_first and not self._is_complete():
            return
        if not is_first:
            if before is None or before.configuration != lease.configuration:
                self.log(f"the lease changed: {_describe(before)} -> {_describe(lease)}")
            self._configure(version, before, lease)
        problem = self._store()
        if is_first and problem:
            self.release(problem)
        elif is_first:
            self._configure(version, lease, lease)  # ADD's caller configures the interface, except for its MTU
            self._respond(self._result())

    def lost(self, version: int, reason: str) -> None:
        """Stores that a lease is lost, then removes its address from the interface: resume() repeats the removal."""
        before, self._why_no_lease = self._leases.pop(version, None), f"it was lost, {reason}"
        self.log(f"lease lost, {reason}; removing {_describe(before)} from the interface")
        if before is not None:
            self._lost[version] = without_time(before)
            self._store()
        self._configure(version, before, None)

    def failed(self, reason: str) -> None:
        """Answers ADD with an error, and ends."""
        self.log(reason)
        self.release(reason)

    def gone(self) -> None:
        """Ends, since the interface was deleted."""
        self.log(f'interface "{self.owner.ifname}" no longer exists, terminating lease maintenance')
        self.release(f'interface "{self.owner.ifname}" no longer exists')

    def log(self, text: str) -> None:
        """Logs a line with the binding's name."""
        log(self.owner.name, text)

    def _watch_later(self) -> None:
        self._watch = self._loop.call_at(min(now() + _WATCH_S, self._give_up_at), self._watch_interface)

    def _watch_interface(self) -> None:
        """Ends an ADD whose pod was deleted meanwhile, since its sockets keep the namespace alive.

        Also ends an ADD whose servers grant leases, but none that can be used: the clients' limit is for silent ones.
        """
        assert self._place is not None
        if interface.is_namespace_gone(self._place):
            self.gone()
        elif now() >= self._give_up_at:
            self.failed(f"no more tries: there is no lease, {self._why_no_lease}")
        else:
            self._watch_later()

    def _is_complete(self) -> bool:
        """Returns whether there is a lease for each configured IP version."""
        return bool(self._sessions) and self._leases.keys() == self._sessions.keys()

    def _find_problem(self) -> Exception | None:
        """Returns why the interface cannot be used: GoneError if it was deleted; None if it exists."""
        try:
            if self._place is not None:
                interface.check(self._place)
        except (GoneError, *_FAILURES) as error:
            return error
        return None

    def _store(self) -> str:
        """Writes the lease file; returns why that is not possible, "" if it is. Tries again until it succeeds."""
        is_repeated = self._store_again is not None
        self._cancel_store()
        try:
            self._settings.store.write(self._record())
        except OSError as error:
            problem = f"cannot store the lease in {self._settings.store.directory}: {error.strerror or error}"
            if not is_repeated:
                self.log(problem)
            self._store_again = self._loop.call_at(now() + _STORE_AGAIN_S, self._repeat_store)
            return problem
        if is_repeated:
            self.log("stored the lease")
        return ""

    def _repeat_store(self) -> None:
        self._store()

    def _cancel_store(self) -> None:
        if self._store_again is not None:
            self._store_again.cancel()
            self._store_again = None

    def _create_sessions(self, place: LeasedInterface) -> None:
        conf, settings, owner = self._conf, self._settings, self.owner
        self._place, self._sessions, self._leases, self._lost = place, {}, {}, {}
        self._cancel_store()
        if conf.ipv4:
            broadcast = settings.broadcast or place.target.shares_mac
            identity = Identity(b"", self._client_id(), conf.provided, conf.requested, broadcast)
            client = Ipv4Client(identity, settings.timing)
            detects = conf.detects_conflicts
            self._sessions[4] = Session(IPV4, client, place, self._loop, self, detects_conflicts=detects)
        if conf.ipv6_mode:
            # A pod's name outlives the pod: only by request, since the new pod may exist before the end of the old one.
            cni_args = owner.args if conf.uses_duid else ""
            duid = dhcp_conf.duid(settings.machine_id, cni_args, owner.container_id)
            identity6 = client6.Identity(duid, dhcp_conf.iaid(owner.network, owner.ifname))
            client_of_both = Ipv6Client(identity6, conf.ipv6_mode, settings.timing)
            self._sessions[6] = Session(IPV6, client_of_both, place, self._loop, self)

    def _client_id(self) -> bytes:
        owner, conf = self.owner, self._conf
        if conf.uses_duid:
            machine_id = self._settings.machine_id
            return dhcp_conf.duid_client_id(machine_id, owner.args, owner.network, owner.ifname, owner.container_id)
        return conf.client_id or dhcp_conf.default_client_id(owner.name)

    def _configure(self, version: int, before: AnyLease | None, after: AnyLease | None) -> None:
        """Changes the interface from one lease to another; the lease gets the routes that the interface has then."""
        assert self._place is not None
        mtu = self._mtu() if after else 0
        if before == after and not mtu:
            return
        try:
            refused = interface.configure(self._place, before, after, self._conf.priority, mtu)
        except GoneError:
            return  # the next deadline ends the binding
        except _FAILURES as error:
            self.log(f"cannot configure the interface: {error}")
            return
        for reason in refused.values():
            self.log(f"{reason}; the former route stays")
        if refused and isinstance(after, Lease):  # those of IPv6 are by a link-local router: the kernel accepts them
            kept = [each for each in (before.routes if before else ()) if each.dst in refused]
            routes = [each for each in after.routes if each.dst not in refused]
            self._leases[version] = replace(after, routes=(*routes, *kept))

    def _mtu(self) -> int:
        """Returns the MTU to set, 0 for none: the lesser one of server and router, which thus do not alternate."""
        assert self._place is not None
        limit, mtus = self._place.target.mtu, []
        for lease in self._leases.values():
            if isinstance(lease, Lease6):  # the MTU before ADD is the largest one (RFC 4861, section 6.3.4)
                mtus.append(min(lease.mtu, limit or lease.mtu))
            elif INTERFACE_MTU in self._conf.requested:  # IPv6 ends on an interface with less than its minimum
                mtus.append(max(lease.mtu, MTU_MIN) if lease.mtu and self._conf.ipv6_mode else lease.mtu)
        return min((mtu for mtu in mtus if mtu), default=0)

    def _record(self) -> LeaseRecord:
        assert self._place is not None
        stored = self._lost | self._leases
        ipv4, ipv6 = stored.get(4), stored.get(6)
        return LeaseRecord(
            owner=self.owner,
            target=self._place.target,
            boot_id=self._settings.boot_id,
            ipv4=ipv4 if isinstance(ipv4, Lease) else None,
            ipv6=ipv6 if isinstance(ipv6, Lease6) else None,
        )

    def _result(self) -> Result:
        """Returns the result of ADD with the leases of both IP versions, IPv4 first."""
        leases = [self._leases[version] for version in sorted(self._leases)]
        return result_of(leases, self._conf.priority, with_dns=self._conf.wants_dns)

    def _respond(self, answer: Result | str) -> None:
        if self._watch is not None:
            self._watch.cancel()
        waiting, self._waiting = self._waiting, []
        for respond in waiting:
            respond(answer)

    def _log_grant(self, lease: AnyLease, verb: str) -> None:
        expiry = "never" if lease.lifetime_s == INFINITE_S else f"in {lease.expires_at - now():.0f} s"
        source = f" from {lease.server}" if isinstance(lease, Lease) else ""
        self.log(f"lease {verb}: {format_ip(lease.address)}{source}, expires {expiry}")


def _describe(lease: AnyLease | None) -> str:
    """Returns a lease's configuration for the log."""
    if lease is None:
        return "no address"
    routes = ", ".join(f"{route.dst.network}{f' via {route.gw}' if route.gw else ''}" for route in lease.routes)
    mtu = f" MTU {lease.mtu}" if lease.mtu else ""
    return f"{format_ip(lease.address)}{f' ({routes})' if routes else ''}{mtu}"
