"""A binding: the lease of one interface, and the client that maintains it, joined to sockets, files and the kernel.

One rule: a lease file exists before ADD returns its lease, and until the lease is released. So a daemon that is killed
at any moment finds every lease in use when it starts again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import NamedTuple

from cni.errors import CniError
from cni.result import Result
from ipam.dhcp import conf as dhcp_conf
from ipam.dhcp import frame, packet
from ipam.dhcp.client4 import Client, Event, Identity, Outgoing, State, Timing
from ipam.dhcp.conf import DhcpConf
from ipam.dhcp.daemon import interface
from ipam.dhcp.daemon.interface import CLIENT_PORT, SERVER_PORT, GoneError, Packets
from ipam.dhcp.daemon.loop import Loop, Timer, now
from ipam.dhcp.lease import INFINITE, Lease, Record, Target, result_of
from ipam.dhcp.options import INTERFACE_MTU
from ipam.dhcp.store import Store
from process.values import dataclass, field, replace

_BROADCAST_MAC, _BROADCAST = b"\xff" * 6, IPv4Address(0xFFFFFFFF)
_UNSEEN_RETRY_S = 60.0  # for a namespace that cannot be looked at now
_MAX_FRAMES = 64  # read at once, so that a flood on one interface does not stop the others
_FAILURES = (CniError, OSError)  # KernelError is a CniError

# The answer to an ADD: the result, or the text of the error.
Respond = Callable[[Result | str], None]


class Settings(NamedTuple):
    """The daemon's settings: `host_prefix` precedes paths of namespaces, `boot_id` is the present boot's."""

    store: Store
    boot_id: str
    machine_id: str
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
        self._conf = conf
        self._settings = settings
        self._loop = loop
        self._count = count
        self._forget = forget
        self._client = Client(Identity(b"", self._client_id()), settings.timing)
        self._target = Target(0, "")
        self._applied: Lease | None = None  # what the interface has
        self._waiting: list[Respond] = []
        self._packets: Packets | None = None
        self._timer: Timer | None = None

    @property
    def state(self) -> str:
        """The client's state, for metrics."""
        return self._client.state.value

    def acquire(self, respond: Respond) -> None:
        """Answers an ADD with the lease, now or when a server grants one; raises CniError, OSError.

        A second ADD of an interface gets the same lease, without a packet.
        """
        if self._client.lease is not None and self._is_present():
            respond(self._result(self._client.lease))
            return
        if self._client.state is not State.STOPPED and self._waiting:
            self._waiting.append(respond)
            return
        self._stop()
        found = interface.find(self._netns, self.owner.ifname)
        self._target = found.target
        broadcast = self._settings.broadcast or found.shares_mac
        self._identify(found.mac, broadcast=broadcast)
        self._waiting.append(respond)
        self._log("acquiring lease")
        self._client.start(now())
        self._proceed(None)

    def resume(self, record: Record) -> None:
        """Continues to maintain a stored lease, after a restart of the daemon; releases it if its interface is gone."""
        self._target, self._applied = record.target, record.lease
        same_boot = record.boot_id == self._settings.boot_id != ""
        # The times of another boot mean nothing: a lease that no server confirms has expired.
        lease = record.lease if same_boot else replace(record.lease, granted_s=-INFINITE)
        self._identify(b"", broadcast=self._settings.broadcast)
        if self._settings.store.must_release(record):
            self._client.lease = record.lease
            self.release()
            return
        self._client.resume(lease, now(), same_boot=same_boot)
        if self._is_gone():
            self._end_without_interface()
        else:
            self._proceed(None)

    def check(self) -> str:
        """Returns why the lease is not in use, "" if it is."""
        if self._client.lease is None:
            return f"the lease was lost: {self._client.reason or 'it is being acquired'}"
        return "" if self._is_present() else f'interface "{self.owner.ifname}" no longer exists'

    def release(self) -> None:
        """Releases the lease and ends: from the interface or, if it was deleted, from a host interface."""
        self._log("releasing lease")
        owner, store, lease = self.owner, self._settings.store, self._client.lease
        try:
            store.note_release(owner.network, owner.container_id, owner.ifname)
        except OSError as error:
            self._log(f"cannot note the release: {error}")
        outgoing = self._client.release()
        if lease is not None:
            self._send_release(lease, outgoing)
        self._end("the lease was released")

    def _end_without_interface(self) -> None:
        self._log(f'interface "{self.owner.ifname}" no longer exists, terminating lease maintenance')
        self.release()

    def _end(self, why: str) -> None:
        """Deletes the lease file, answers whoever waits, and forgets the binding."""
        self._stop()
        owner = self.owner
        try:
            self._settings.store.delete(owner.network, owner.container_id, owner.ifname)
        except OSError as error:
            self._log(f"cannot delete the lease file: {error}")
        self._respond(why)
        self._forget()

    def _stop(self) -> None:
        """Closes the sockets and cancels the timer."""
        self._close_packets()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _netns(self) -> str:
        return self._settings.host_prefix + self.owner.netns

    def _client_id(self) -> bytes:
        owner = self.owner
        if self._conf.uses_duid:
            return dhcp_conf.duid_client_id(
                self._settings.machine_id, owner.args, owner.network, owner.ifname, owner.container_id
            )
        return self._conf.client_id or dhcp_conf.default_client_id(owner.name)

    def _identify(self, mac: bytes, *, broadcast: bool) -> None:
        conf = self._conf
        self._client.identity = Identity(mac, self._client_id(), conf.provided, conf.requested, broadcast)

    def _is_present(self) -> bool:
        try:
            return interface.get_link(self._netns, self._target) is not None
        except (GoneError, *_FAILURES):
            return False

    def _is_gone(self) -> bool:
        try:
            interface.get_link(self._netns, self._target)
        except GoneError:
            return True
        except _FAILURES as error:
            self._log(f"cannot look at the interface: {error}")
        return False

    def _expire(self) -> None:
        """Acts on the deadline: of the client, or of the time in which answers can arrive."""
        self._timer = None
        if now() < self._client.deadline:
            self._proceed(None)
            return
        try:
            self._open_packets()
        except GoneError:
            self._end_without_interface()
            return
        except _FAILURES as error:
            self._log(f"cannot use the interface: {error}")
            lease = self._client.lease
            if lease is None or now() < lease.expires_at:
                self._timer = self._loop.call_at(now() + _UNSEEN_RETRY_S, self._expire)
                return
        self._proceed(self._client.expire(now()))

    def _read(self) -> None:
        """Reads the frames that have arrived."""
        for _ in range(_MAX_FRAMES):
            if self._packets is None:
                return
            try:
                received = self._packets.receive()
            except OSError as error:  # ENETDOWN: the interface was set down or deleted
                self._log(f"cannot receive: {error.strerror}")
                self._close_packets()
                return
            if received is None:
                return
            self._receive(*received)

    def _receive(self, content: bytes, checksum_is_ready: bool) -> None:
        try:
            datagram = frame.parse_udp4(content, checksum_is_ready=checksum_is_ready)
            message = packet.decode(datagram.payload)
        except packet.Malformed:
            self._count("malformed_packets")
            return
        event = self._client.receive(message, now())
        if event is Event.GRANTED and self._client.lease is not None:
            self._client.lease = replace(self._client.lease, server_mac=datagram.source_mac.hex(":"))
        self._proceed(event)

    def _proceed(self, event: Event | None) -> None:
        """Sends what the client wants to send, acts on its event, and waits for what comes next."""
        self._send(self._client.take_outgoing())
        if event is not None and not self._act(event):
            return
        if now() >= self._client.listening_until:
            self._close_packets()
        if self._timer is not None:
            self._timer.cancel()
        due = (
            self._client.deadline if self._packets is None else min(self._client.deadline, self._client.listening_until)
        )
        self._timer = self._loop.call_at(due, self._expire) if due < INFINITE else None

    def _act(self, event: Event) -> bool:
        """Acts on the client's event; returns whether the binding continues."""
        self._count(event.value)
        if event is Event.FAILED:
            self._log(self._client.reason)
            self._end(self._client.reason)
            return False
        try:
            return self._granted() if event is Event.GRANTED else self._lost()
        except GoneError:
            self._end_without_interface()
            return False
        except _FAILURES as error:
            self._log(f"cannot configure the interface: {error}")
            return True

    def _granted(self) -> bool:
        """Stores a lease and answers ADD with it, or applies what a renewal changed; returns whether it could."""
        lease = self._client.lease
        assert lease is not None
        before, is_first = self._applied, bool(self._waiting)
        expiry = "never" if lease.lifetime_s == INFINITE else f"in {lease.expires_at - now():.0f} s"
        self._log(
            f"lease {'acquired' if is_first else 'renewed'}: {lease.address} from {lease.server}, expires {expiry}"
        )
        try:
            self._settings.store.write(self._record(lease))
        except OSError as error:
            self._log(f"cannot store the lease: {error}")
            if is_first:
                self._waiting, waiting = [], self._waiting
                self.release()
                for respond in waiting:
                    respond(f"cannot store the lease: {error}")
                return False
        mtu = lease.mtu if INTERFACE_MTU in self._conf.requested else 0
        if is_first:
            interface.configure(self._netns, self._target, None, None, 0, mtu)
        elif before is None or lease.differs_from(before):
            self._log(f"the lease changed: {describe(before)} -> {describe(lease)}")
            interface.configure(self._netns, self._target, before, lease, self._conf.priority, mtu)
        self._applied = lease
        self._respond(self._result(lease))
        return True

    def _lost(self) -> bool:
        """Removes the address of a lost lease from the interface."""
        before, self._applied = self._applied, None
        self._log(f"lease lost, {self._client.reason}; removing {describe(before)} from the interface")
        interface.configure(self._netns, self._target, before, None, self._conf.priority, 0)
        return True

    def _record(self, lease: Lease) -> Record:
        owner = self.owner
        return Record(
            network=owner.network,
            container_id=owner.container_id,
            ifname=owner.ifname,
            netns=owner.netns,
            args=owner.args,
            stdin=owner.stdin,
            client_id=self._client.identity.client_id,
            target=self._target,
            boot_id=self._settings.boot_id,
            lease=lease,
        )

    def _result(self, lease: Lease) -> Result:
        return result_of(lease, self._conf.priority, with_dns=self._conf.wants_dns)

    def _respond(self, answer: Result | str) -> None:
        waiting, self._waiting = self._waiting, []
        for respond in waiting:
            respond(answer)

    def _send(self, outgoing: list[Outgoing]) -> None:
        if not outgoing:
            return
        try:
            packets = self._open_packets()
            for each in outgoing:
                packets.send(self._frame(each, packets.mac))
        except GoneError:
            return  # the next deadline finds it out, too
        except _FAILURES as error:
            self._log(f"cannot send: {error}")

    def _send_release(self, lease: Lease, outgoing: list[Outgoing]) -> None:
        """Sends the release from the interface or, if it was deleted, from a host interface on the same network."""
        try:
            packets, source_mac = self._open_for_release()
            if packets is None:
                end = "" if lease.lifetime_s == INFINITE else f" for {max(0.0, lease.expires_at - now()):.0f} s"
                self._log(f"cannot release {lease.address.ip}: no interface is left; {lease.server} keeps it{end}")
                return
            for each in outgoing:
                packets.send(self._frame(each, source_mac))
            packets.close()
            self._packets = None if packets is self._packets else self._packets
        except _FAILURES as error:
            self._log(f"failed to release DHCP lease: {error}")

    def _open_for_release(self) -> tuple[Packets | None, bytes]:
        try:
            packets = interface.open_packets(self._netns, self._target)
        except (GoneError, CniError):
            name = self._target.host_interface
            mac = bytes.fromhex(self._target.mac.replace(":", ""))
            self._client.identity = replace(self._client.identity, mac=mac)
            return (interface.open_host_packets(name) if name else None), mac
        return packets, packets.mac

    def _frame(self, outgoing: Outgoing, source_mac: bytes) -> bytes:
        """Returns a message as a frame; a server is reached by the MAC address of its last answer, or its relay's."""
        message = replace(outgoing.message, chaddr=source_mac)
        lease = self._applied
        mac, address = _BROADCAST_MAC, _BROADCAST
        if outgoing.server is not None:
            address = outgoing.server
            if lease is not None and lease.server_mac:
                mac = bytes.fromhex(lease.server_mac.replace(":", ""))
        ports = CLIENT_PORT, SERVER_PORT
        return frame.build_udp4(source_mac, mac, outgoing.source, address, *ports, packet.encode(message))

    def _open_packets(self) -> Packets:
        """Opens the packet socket unless it is open; raises GoneError, CniError, OSError."""
        if self._packets is None:
            lease = self._client.lease
            self._packets = interface.open_packets(
                self._netns, self._target, answers_to=lease.address.ip if lease else None
            )
            self._client.identity = replace(self._client.identity, mac=self._packets.mac)
            self._loop.watch(self._packets.fileno(), self._read)
        return self._packets

    def _close_packets(self) -> None:
        if self._packets is not None:
            self._loop.unwatch(self._packets.fileno())
            self._packets.close()
            self._packets = None

    def _log(self, text: str) -> None:
        log(self.owner.name, text)


def describe(lease: Lease | None) -> str:
    """Returns a lease's configuration for the log."""
    if lease is None:
        return "no address"
    routes = ", ".join(f"{route.dst.network} via {route.gw}" for route in lease.routes)
    return f"{lease.address}{f' ({routes})' if routes else ''}{f' MTU {lease.mtu}' if lease.mtu else ''}"
