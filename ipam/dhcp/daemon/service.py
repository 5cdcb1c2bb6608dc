"""The calls that the daemon answers, and the bindings that it maintains.

One rule: an interface has one binding, found by network, container ID and interface name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from cni import conf as cni_conf
from cni.args import check_container_id, check_ifname
from cni.conf import NetConf
from cni.errors import CniError
from cni.result import Result
from ipam.dhcp import conf as dhcp_conf
from ipam.dhcp.daemon.binding import Binding, DaemonSettings, log
from ipam.dhcp.record import LeaseOwner, LeaseRecord
from ipam.dhcp.rpc import ALLOCATE, CHECK, RELEASE, CallArgs
from process.loop import Loop

# The answer to a call: a result, None for an empty answer, or the text of an error.
Answer = Callable[[Result | str | None], None]
_Key = tuple[str, str, str]


class Service:
    """The daemon's bindings, and what it has counted."""

    def __init__(self, settings: DaemonSettings, loop: Loop) -> None:
        self.counters: Counter[str] = Counter()
        self._settings = settings._replace(namespaces=self._list_namespaces)
        self._loop = loop
        self._bindings: dict[_Key, Binding] = {}

    def load(self) -> None:
        """Resumes all stored leases; logs files that cannot be read, and leaves them. Raises OSError."""
        self._settings.store.delete_drafts()
        for record in self._settings.store.read_all():
            if not isinstance(record, LeaseRecord):
                log(record.path, f"cannot read the lease, ignoring it: {record.problem}")
                continue
            owner = record.owner
            try:
                conf = dhcp_conf.parse(cni_conf.parse(owner.stdin), owner.args)
            except CniError as error:
                log(owner.name, f"cannot resume the lease: {error}")
                continue
            self._create(owner, conf).resume(record)

    def answer(self, method: str, args: CallArgs, respond: Answer) -> None:
        """Answers a call, now or later; an error is a text."""
        methods = {ALLOCATE: self._allocate, RELEASE: self._release, CHECK: self._check}
        if method not in methods:
            respond(f"rpc: can't find method {method}")
            return
        try:
            if method != CHECK:  # STATUS is a CHECK without an interface
                _check_names(args)
            net_conf = cni_conf.parse(args.stdin)
            methods[method](net_conf, args, respond)
        except CniError as error:
            respond(str(error))
        except OSError as error:
            respond(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")

    def withdraw(self, respond: Answer) -> None:
        """Ends the work for a call whose client has gone."""
        for binding in list(self._bindings.values()):
            binding.withdraw(respond)

    def metrics(self) -> str:
        """Returns the metrics in Prometheus' text format."""
        states = Counter(state for binding in self._bindings.values() for state in binding.states)
        lines = ["# TYPE podwire_dhcp_leases gauge"]
        lines += [f'podwire_dhcp_leases{{state="{state}"}} {count}' for state, count in sorted(states.items())]
        lines += ["# TYPE podwire_dhcp_events_total counter"]
        lines += [f'podwire_dhcp_events_total{{event="{name}"}} {n}' for name, n in sorted(self.counters.items())]
        return "\n".join(lines) + "\n"

    def _allocate(self, net_conf: NetConf, args: CallArgs, respond: Answer) -> None:
        conf = dhcp_conf.parse(net_conf, args.args)
        key = _key(net_conf, args)
        binding = self._bindings.get(key)
        if binding is not None and binding.owner.netns != args.netns:  # the container was created again without a DEL
            binding.release()
            binding = None
        if binding is None:
            owner = LeaseOwner(net_conf.name, args.container_id, args.ifname, args.netns, args.args, args.stdin)
            binding = self._create(owner, conf)
        try:
            binding.acquire(respond)
        finally:
            if not binding.states:  # the interface was not found, and there was no lease before
                self._bindings.pop(key, None)

    def _release(self, net_conf: NetConf, args: CallArgs, respond: Answer) -> None:
        binding = self._bindings.get(_key(net_conf, args))
        if binding is not None:
            binding.release()
        else:  # a file that cannot be read, or of a configuration that this version refuses
            self._delete_file(_key(net_conf, args))
        respond(None)

    def _delete_file(self, key: _Key) -> None:
        try:
            self._settings.store.delete(*key)
        except OSError as error:
            network, container_id, ifname = key
            log(dhcp_conf.name_of(network, container_id, ifname), f"cannot delete the lease file: {error}")

    def _check(self, net_conf: NetConf, args: CallArgs, respond: Answer) -> None:
        binding = self._bindings.get(_key(net_conf, args))
        respond((binding.check() if binding else "there is no lease for this interface") or None)

    def _create(self, owner: LeaseOwner, conf: dhcp_conf.DhcpConf) -> Binding:
        forget = partial(self._forget, owner.key)
        binding = Binding(owner, conf, self._settings, self._loop, self._count, forget)
        self._bindings[owner.key] = binding
        return binding

    def _list_namespaces(self) -> list[str]:
        return [binding.netns for binding in self._bindings.values()]

    def _forget(self, key: _Key) -> None:
        self._bindings.pop(key, None)

    def _count(self, event: str) -> None:
        self.counters[event] += 1


def _check_names(args: CallArgs) -> None:
    """Raises CniError(4): names become those of files, and a client of the socket may be no CNI plugin."""
    check_container_id(args.container_id)
    check_ifname(args.ifname)


def _key(net_conf: NetConf, args: CallArgs) -> _Key:
    return net_conf.name, args.container_id, args.ifname
