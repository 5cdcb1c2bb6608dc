"""Runs CHECK of cached attachments, for `podwire doctor` and `podwire show`.

CHECK runs in this process and only reads. host-local's CHECK, which locks the store, is replaced by one that
reads the store without the lock.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial

from cni import args as cni_args
from cni import conf as cni_conf
from cni import gojson, skel, versions
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, internal
from cni.fields import Fields
from cni.skel import Plugin
from ipam.host_local import conf as host_local
from ipam.host_local.main import PLUGIN as HOST_LOCAL
from ipam.host_local.store import Owners, ReservationStore, owner_of
from podwire import attachments
from podwire.attachments import CachedAttachment

LIMIT_S = 120.0  # for all attachments of a node: a thousand take five to ten seconds of a processor, more if it is busy
NETNS_NOT_VISIBLE = "their network namespaces cannot be seen from here"


@dataclass(frozen=True)
class Failure:
    """A failed CHECK of one plugin; `only_rules`: only rules are missing, which `podwire repair` restores."""

    plugin: str
    error: CniError
    only_rules: bool


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of CHECK for one attachment: failures, and warnings that passing plugins printed.

    `foreign` names plugins of other vendors, whose CHECK was not run. `skipped` is the configuration's reason for not
    running CHECK (a version without CHECK); `unseen` is the reason why the attachment could not be inspected.
    """

    failures: tuple[Failure, ...] = ()
    remarks: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    skipped: str = ""
    unseen: str = ""


class Checker:
    """Checks attachments with `plugins`, a mapping by type; `path` is CNI_PATH. Reads each store once."""

    def __init__(self, plugins: Mapping[str, Plugin], env: Mapping[str, str], path: tuple[str, ...]) -> None:
        self.plugins = plugins
        self._env = dict(env)
        self._path = path
        self._owners: dict[str, Owners] = {}
        self._verdicts: dict[str, CheckOutcome] = {}
        lockless = replace(HOST_LOCAL, cmd_check=partial(_check_reservation, self))
        self._delegates = {**plugins, HOST_LOCAL.name: lockless}

    def check(self, one: CachedAttachment) -> CheckOutcome:
        """Runs CHECK of each plugin, up to a failure that is not about rules: later plugins depend on that plugin.

        An attachment is checked once: another call returns the first verdict.
        """
        if one.path not in self._verdicts:
            self._verdicts[one.path] = self._check(one)
        return self._verdicts[one.path]

    def _check(self, one: CachedAttachment) -> CheckOutcome:
        skipped, unseen = _obstacle(one)
        if skipped or unseen:
            return CheckOutcome(skipped=skipped, unseen=unseen)
        assert one.network is not None
        failures: list[Failure] = []
        remarks: list[str] = []
        foreign: list[str] = []
        for plugin in one.network.plugins:
            kind = str(plugin["type"])
            if kind not in self.plugins:
                foreign.append(kind)
                continue
            if ipam := self._other_ipam(plugin):
                foreign.append(f"the IPAM plugin {ipam} of {kind}")
            stderr = io.StringIO()
            try:
                with redirect_stderr(stderr):
                    self._run_check(one, plugin)
                remarks += stderr.getvalue().splitlines()
            except Exception as failure:
                error = skel.as_cni_error(failure)
                failures.append(
                    Failure(kind, error, self._lacks_only_rules(one, plugin) and "sysctl" not in error.details)
                )
                if not failures[-1].only_rules:
                    break
        if failures and attachments.read(one.path) is None:
            return CheckOutcome(skipped="they were deleted meanwhile")
        return CheckOutcome(tuple(failures), tuple(remarks), tuple(foreign))

    def build_call(self, command: str, stdin: object, one: CachedAttachment | None = None) -> tuple[CmdArgs, NetConf]:
        """Returns the arguments and configuration to call one of podwire's plugins in this process; raises CniError."""
        env = {"CNI_COMMAND": command, "CNI_PATH": ":".join(self._path)}
        if one:
            env |= {"CNI_CONTAINERID": one.attachment.container_id, "CNI_IFNAME": one.attachment.ifname}
            env |= {"CNI_NETNS": one.netns, "CNI_ARGS": one.cni_args}
        data = gojson.dumps(stdin).encode()
        args = replace(cni_args.from_env({**self._env, **env}), stdin=data, delegates=self.plugins, in_process=True)
        return args, cni_conf.parse(data)

    def get_owners(self, store: ReservationStore) -> Owners:
        """Returns the reservations of a store; raises OSError (FileNotFoundError if it was never created)."""
        if store.directory not in self._owners:
            self._owners[store.directory] = store.list_owners()
        return self._owners[store.directory]

    def _run_check(self, one: CachedAttachment, plugin: Mapping[str, object]) -> None:
        """Runs CHECK of a plugin in this process; passes on its exceptions."""
        assert one.network is not None
        stdin = one.network.build_config(plugin, capability_args=one.capability_args, prev_result=one.result)
        args, conf = self.build_call("CHECK", stdin, one)
        ipam = self._other_ipam(plugin)
        delegates = {**self._delegates, ipam: replace(HOST_LOCAL, name=ipam, cmd_check=_check_nothing)}
        skel.run_verb(delegates[str(plugin["type"])], replace(args, delegates=delegates), conf)

    def _lacks_only_rules(self, one: CachedAttachment, plugin: Mapping[str, object]) -> bool:
        """Returns whether only rules are missing; for an interface plugin, whether CHECK passes without ipMasq."""
        if plugin["type"] in ("portmap", "firewall"):
            return True
        try:
            if not Fields(plugin).boolean("ipMasq"):
                return False
            with redirect_stderr(io.StringIO()):
                self._run_check(one, {**plugin, "ipMasq": False})
        except Exception:
            return False
        return True

    def _other_ipam(self, plugin: Mapping[str, object]) -> str:
        """Returns the type of an IPAM plugin that is not podwire's, "" for others: its CHECK would run a program."""
        try:
            ipam = Fields(plugin).section("ipam").string("type")
        except CniError:
            return ""
        return "" if ipam in self.plugins else ipam


def _obstacle(one: CachedAttachment) -> tuple[str, str]:
    """Returns why an attachment is not checked: (the configuration's reason, why it cannot be inspected)."""
    if one.network is None or not isinstance(one.result, dict):
        return "", "the cache has no configuration or result"
    if one.network.disable_check:
        return 'their network has "disableCheck"', ""
    if one.network.version not in versions.SUPPORTED or not versions.at_least(one.network.version, "0.4.0"):
        return f"cniVersion {one.network.version} has no CHECK", ""
    if not one.netns:
        return "", "the cache has no namespace"
    if os.geteuid() != 0:
        return "", "root is needed"
    if not os.access(one.netns, os.R_OK):
        return "", NETNS_NOT_VISIBLE
    return "", ""


def _check_nothing(args: CmdArgs, conf: NetConf) -> None:
    """Stands for the CHECK of an IPAM plugin that is not podwire's; the interface plugin checks its addresses."""


def _check_reservation(checker: Checker, args: CmdArgs, conf: NetConf) -> None:
    """Does the same as host-local's CHECK, without the store's lock."""
    store = ReservationStore(host_local.data_dir(conf), conf.name)
    try:
        owners = checker.get_owners(store)
    except FileNotFoundError:
        owners = {}
    except OSError as error:
        raise store.unusable(error) from error
    if not any(owner_of(args.container_id, name) in owners for name in (args.ifname, "")):
        raise internal(
            f"host-local: Failed to find address added by container {args.container_id}",
            f"no reservation of {args.ifname} in {store.directory}: another pod may get its address; "
            "remove the container and create it again",
        )
