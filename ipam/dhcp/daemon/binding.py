"""A binding: the lease of one interface, with the file that stores it and the calls that wait for it.

One rule: a lease file exists before ADD returns its lease, and until the lease is released. So a daemon that is killed
at any moment finds every lease in use when it starts again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cni.errors import CniError
from cni.result import Result
from ipam.dhcp import conf as dhcp_conf
from ipam.dhcp.client4 import Client, Identity, State, Timing
from ipam.dhcp.conf import DhcpConf
from ipam.dhcp.daemon import interface
from ipam.dhcp.daemon.interface import GoneError, Place
from ipam.dhcp.daemon.loop import Loop, now
from ipam.dhcp.daemon.session4 import Session4
from ipam.dhcp.lease import INFINITE, Lease, Record, result_of
from ipam.dhcp.options import INTERFACE_MTU
from ipam.dhcp.store import Store
from process.values import dataclass, field

_FAILURES = (CniError, OSError)  # KernelError is a CniError

# The answer to an ADD: the result, or the text of the error.
Respond = Callable[[Result | str], None]


class Settings(NamedTuple):
    """The daemon's settings: `host_prefix` precedes paths of namespaces, `boot_id` is the present boot's.

    `namespaces` returns the paths of all leases' namespaces.
    """

    store: Store
    boot_id: str
    machine_id: str
    namespaces: Callable[[], Iterable[str]] = tuple
    host_prefix: str = ""
    broadcast: bool = False
    timing: Timing = Timing()


@dataclass(frozen=True)
class Owner:
    """The interface that a lease is for, as the plugin's call names it."""

    network: str
    container_id: str
    ifname: str
    netns: str
    args: str
    stdin: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """The name in logs."""
        return dhcp_conf.name_of(self.network, self.container_id, self.ifname)


def log(name: str, text: str) -> None:
    """Writes one line to stderr, in the reference's form."""
    print(f"{time.strftime('%Y/%m/%d %H:%M:%S')} {name}: {text}", file=sys.stderr, flush=True)


class Binding:
    """The lease of `owner`'s interface. `forget` is called when the binding has ended; it has no lease then."""

    def __init__(
        self,
        owner: Owner,
        conf: DhcpConf,
        settings: Settings,
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
        self._place: Place | None = None
        self._session: Session4 | None = None
        self._lease: Lease | None = None  # stored, and configured on the interface
        self._why_no_lease = "it is being acquired"
        self._waiting: list[Respond] = []

    @property
    def netns(self) -> str:
        """The path of the interface's namespace, as this process sees it."""
        return self._settings.host_prefix + self.owner.netns

    @property
    def state(self) -> str:
        """The client's state, for metrics."""
        return (self._session.state if self._session else State.STOPPED).value

    def acquire(self, respond: Respond) -> None:
        """Answers an ADD with the lease, now or when a server grants one; raises CniError, OSError.

        A second ADD of an interface gets the same lease, without a packet.
        """
        if self._lease is not None and not self.check():
            respond(self._result(self._lease))
            return
        if self._waiting:
            self._waiting.append(respond)
            return
        if self._session is not None:
            self._session.stop()
        target = interface.find(self.netns, self.owner.ifname)
        self._place = Place(self.netns, target, self._settings.namespaces)
        self._session = self._create_session(self._place)
        self._waiting.append(respond)
        self.log("acquiring lease")
        self._session.start()

    def resume(self, record: Record) -> None:
        """Continues to maintain a stored lease after a restart of the daemon, or releases it.

        It is released if a DEL has left a note, or if the interface was deleted meanwhile.
        """
        self._lease = record.lease
        self._place = Place(self.netns, record.target, self._settings.namespaces)
        self._session = self._create_session(self._place)
        same_boot = record.boot_id == self._settings.boot_id != ""
        self._session.resume(record.lease, same_boot=same_boot)
        if self._settings.store.must_release(record):
            self.release()
            return
        try:
            interface.check(self._place)
        except GoneError:
            self.gone()
        except _FAILURES as error:
            self.log(f"cannot look at the interface: {error}")

    def check(self) -> str:
        """Returns why the interface does not have its lease, "" if it does."""
        if self._lease is None or self._place is None:
            return f"there is no lease: {self._why_no_lease}"
        try:
            interface.check(self._place)
        except GoneError:
            return f'interface "{self.owner.ifname}" no longer exists'
        except _FAILURES as error:
            return f'cannot look at interface "{self.owner.ifname}": {error}'
        return ""

    def release(self, answer: str = "the lease was released") -> None:
        """Releases the lease, and ends; `answer` is for calls that wait for a lease."""
        self.log("releasing lease")
        owner, store = self.owner, self._settings.store
        key = (owner.network, owner.container_id, owner.ifname)
        try:
            store.note_release(*key)  # a daemon that is killed now releases it again
            if self._session is not None:
                self._session.release()
            store.delete(*key)
        except OSError as error:
            self.log(f"cannot delete the lease file: {error}")
        self._lease = None
        self._respond(answer)
        self._forget()

    def granted(self, lease: Lease) -> None:
        """Stores a lease and answers ADD with it, or applies what a renewal changed to the interface."""
        before, is_first = self._lease, bool(self._waiting)
        expiry = "never" if lease.lifetime_s == INFINITE else f"in {lease.expires_at - now():.0f} s"
        verb = "acquired" if is_first else "renewed"
        self.log(f"lease {verb}: {lease.address} from {lease.server}, expires {expiry}")
        try:
            self._settings.store.write(self._record(lease))
        except OSError as error:
            self.log(f"cannot store the lease: {error}")
            if is_first:
                self.release(f"cannot store the lease: {error}")
                return
        self._lease = lease
        if is_first:
            before = lease  # ADD's caller configures the interface, except for its MTU
        elif before is None or lease.differs_from(before):
            self.log(f"the lease changed: {_describe(before)} -> {_describe(lease)}")
        self._configure(before, lease)
        self._respond(self._result(lease))

    def lost(self, reason: str) -> None:
        """Removes the address of a lost lease from the interface."""
        before, self._lease, self._why_no_lease = self._lease, None, f"it was lost, {reason}"
        self.log(f"lease lost, {reason}; removing {_describe(before)} from the interface")
        self._configure(before, None)

    def failed(self, reason: str) -> None:
        """Answers ADD with an error, and ends."""
        self.release(reason)

    def gone(self) -> None:
        """Ends the binding, since the interface was deleted."""
        self.log(f'interface "{self.owner.ifname}" no longer exists, terminating lease maintenance')
        self.release(f'interface "{self.owner.ifname}" no longer exists')

    def log(self, text: str) -> None:
        """Logs a line with the binding's name."""
        log(self.owner.name, text)

    def _create_session(self, place: Place) -> Session4:
        conf, settings = self._conf, self._settings
        broadcast = settings.broadcast or place.target.shares_mac
        identity = Identity(b"", self._client_id(), conf.provided, conf.requested, broadcast)
        client = Client(identity, settings.timing)
        return Session4(client, place, self._loop, self, detects_conflicts=conf.detects_conflicts)

    def _client_id(self) -> bytes:
        owner, conf = self.owner, self._conf
        if conf.uses_duid:
            machine_id = self._settings.machine_id
            return dhcp_conf.duid_client_id(machine_id, owner.args, owner.network, owner.ifname, owner.container_id)
        return conf.client_id or dhcp_conf.default_client_id(owner.name)

    def _configure(self, before: Lease | None, after: Lease | None) -> None:
        assert self._place is not None
        mtu = after.mtu if after and INTERFACE_MTU in self._conf.requested else 0
        if before == after and not mtu:
            return
        try:
            interface.configure(self._place, before, after, self._conf.priority, mtu)
        except GoneError:
            return  # the next deadline ends the binding
        except _FAILURES as error:
            self.log(f"cannot configure the interface: {error}")

    def _record(self, lease: Lease) -> Record:
        assert self._place is not None
        owner = self.owner
        return Record(
            network=owner.network,
            container_id=owner.container_id,
            ifname=owner.ifname,
            netns=owner.netns,
            args=owner.args,
            stdin=owner.stdin,
            client_id=self._client_id(),
            target=self._place.target,
            boot_id=self._settings.boot_id,
            lease=lease,
        )

    def _result(self, lease: Lease) -> Result:
        return result_of(lease, self._conf.priority, with_dns=self._conf.wants_dns)

    def _respond(self, answer: Result | str) -> None:
        waiting, self._waiting = self._waiting, []
        for respond in waiting:
            respond(answer)


def _describe(lease: Lease | None) -> str:
    """Returns a lease's configuration for the log."""
    if lease is None:
        return "no address"
    routes = ", ".join(f"{route.dst.network} via {route.gw}" for route in lease.routes)
    return f"{lease.address}{f' ({routes})' if routes else ''}{f' MTU {lease.mtu}' if lease.mtu else ''}"
