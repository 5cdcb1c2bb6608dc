"""The living attachments: each plugin's CHECK, with the configuration and the result that the cache has of it.

One rule: CHECK is run in this process and only looks: host-local's, which takes the store's lock, is replaced by a look
without it. What it tells of rules is mended by `podwire repair`, the rest by what it says itself.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from functools import partial

from cni import skel, versions
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.fields import Fields
from cni.presence import Presence
from cni.skel import Plugin
from ipam.host_local import conf as host_local
from ipam.host_local.main import PLUGIN as HOST_LOCAL
from ipam.host_local.store import Store, owner_of
from plugins.portmap.claims import ShadowedError
from podwire.attachments import Known
from podwire.doctor.finding import Check, Fault, Finding, Severity, fine_one
from podwire.doctor.node import Node

_GROUP = "attachments"
_LIMIT_S = 4.0  # for all of them
_MOST_TOLD = 5  # of one kind and network; the rest is counted

_LOST_RULES = Fault(
    "rules-missing",
    Severity.PROBLEM,
    "masquerading, host ports or the firewall's rules of a living pod are not there: flushed, or lost by a reload",
    "`podwire repair NETWORK`",
)
_SHADOWED = Fault(
    "host-port-shadowed",
    Severity.PROBLEM,
    "another container's rule stands before the pod's host port, and gets its packets",
    "give one of them another host port, or `podwire gc NETWORK` if the other is gone",
)
_WRONG = Fault(
    "check-failed",
    Severity.PROBLEM,
    "a living pod is not as ADD left it: its interface, addresses, routes, limits or settings",
    "what the plugin's CHECK says: mostly to remove the container and make it again",
)
_NOT_ALL = Fault(
    "not-all-checked",
    Severity.NOTE,
    "not every attachment was checked: time was up, the network is of a version without CHECK, forbids it, or a plugin "
    "of it is not ours",
    "`podwire doctor NETWORK` looks at one network; `podwire check NETWORK NETNS` at one attachment",
)
_REMARK = Fault(
    "remark",
    Severity.NOTE,
    "CHECK passes, and a plugin has something to say all the same: mostly that nothing guards the host's 127.0.0.1, as "
    "with pods whose host ports the reference made",
    "what it says; `podwire repair NETWORK` makes the guard",
)


@dataclass
class _Tally:
    """How many were checked, and for what others were not."""

    checked: int = 0
    left: dict[str, int] = field(default_factory=dict)
    told: dict[tuple[str, str], int] = field(default_factory=dict)
    remarks: dict[tuple[str, str], None] = field(default_factory=dict)

    def leave(self, why: str) -> None:
        """Counts one that was not checked."""
        self.left[why] = self.left.get(why, 0) + 1


def _look(node: Node) -> Iterator[Finding]:
    end = time.monotonic() + _LIMIT_S
    tally = _Tally()
    for one in node.living:
        why = "time was up" if time.monotonic() > end else _unchecked(node, one)
        if why:
            tally.leave(why)
            continue
        tally.checked += 1
        for finding in _check(node, one, tally):
            number = tally.told[finding.name, one.network_name] = (
                tally.told.get((finding.name, one.network_name), 0) + 1
            )
            if number <= _MOST_TOLD:
                yield finding
    for (name, network), number in tally.told.items():
        if number > _MOST_TOLD:
            more = f"{number - _MOST_TOLD} more of its attachments: the same"
            yield Finding(Severity.PROBLEM, name, network, more, f"podwire show {network}")
    for network, line in tally.remarks:
        yield _REMARK.found(network, line.removeprefix("podwire: "), _remedy(node, network, line))
    if tally.left:
        text = f"{tally.checked} of {len(node.living)} attachments were checked"
        reasons = "; ".join(f"{number}: {why}" for why, number in tally.left.items())
        yield _NOT_ALL.found("attachments", f"{text}; not {reasons}", "podwire check NETWORK NETNS")
    elif tally.checked:
        yield fine_one("check", "attachments", f"all {tally.checked} were checked")


def _remedy(node: Node, network: str, line: str) -> str:
    return node.command("repair", network) if "podwire repair" in line else ""


def _unchecked(node: Node, one: Known) -> str:
    """Tells why an attachment cannot be checked, "" when it can be."""
    if one.network is None or not isinstance(one.result, dict):
        return "the cache has no configuration or result"
    if one.network.disable_check:
        return 'their network has "disableCheck"'
    if not one.netns:
        return "the cache has no namespace"
    if node.presence(one) is not Presence.HERE:
        return "their network namespaces cannot be seen from here"
    if one.network.version not in versions.SUPPORTED or not versions.at_least(one.network.version, "0.4.0"):
        return f"cniVersion {one.network.version} has no CHECK"
    if not os.access(one.netns, os.R_OK) or os.geteuid() != 0:
        return "root is needed"
    return ""


def _check(node: Node, one: Known, tally: _Tally) -> Iterator[Finding]:
    """Yields what is wrong with an attachment: the rules that are missing together, and the first of anything else."""
    assert one.network is not None
    lost: list[Finding] = []
    for plugin in one.network.plugins:
        kind = str(plugin["type"])
        if kind not in node.plugins or _other_ipam(node, plugin):
            tally.leave(f"{kind} is not ours")
            continue
        if kind == "bridge" and node.link(_bridge(plugin)) is None:
            continue  # told by the links' group
        said = io.StringIO()
        try:
            with redirect_stderr(said):
                _run(node, one, plugin)
            tally.remarks |= dict.fromkeys((one.network_name, line) for line in said.getvalue().splitlines())
        except Exception as error:
            finding = _told(node, one, plugin, skel.as_cni_error(error))
            if finding.name == _LOST_RULES.name:
                lost.append(finding)
                continue
            yield finding
            break  # what follows works on what this one made
    if lost:
        yield replace(lost[0], text="; ".join(finding.text for finding in lost))


def _told(node: Node, one: Known, plugin: Mapping[str, object], error: CniError) -> Finding:
    kind = str(plugin["type"])
    pod = one.pod or one.attachment.container_id
    subject = f"{one.network_name}: {pod} {one.attachment.ifname}"
    text = f"{kind}: {error.msg}"
    if isinstance(error, ShadowedError):
        return _SHADOWED.found(subject, text, error.details or _SHADOWED.cure)
    if _is_of_rules(node, one, plugin) and "sysctl" not in error.details:
        return _LOST_RULES.found(subject, text, node.command("repair", one.network_name))
    return _WRONG.found(subject, text, error.details or "remove the container and create it again")


def _is_of_rules(node: Node, one: Known, plugin: Mapping[str, object]) -> bool:
    """Tells whether rules are what is wrong: of an interface plugin, if nothing else is but masquerading."""
    if plugin["type"] in ("portmap", "firewall"):
        return True
    try:
        if not Fields(plugin).boolean("ipMasq"):
            return False
        with redirect_stderr(io.StringIO()):
            _run(node, one, {**plugin, "ipMasq": False})
    except Exception:
        return False
    return True


def _run(node: Node, one: Known, plugin: Mapping[str, object]) -> None:
    """Runs CHECK of a plugin in this process; raises what it raises."""
    assert one.network is not None
    stdin = one.network.request(plugin, capability_args=one.capability_args, prev_result=one.result)
    args, conf = node.request("CHECK", one.attachment, stdin, known=one)
    own = replace(HOST_LOCAL, cmd_check=partial(_reserved, node))
    delegates: dict[str, Plugin] = {**node.plugins, HOST_LOCAL.name: own}
    skel.call(delegates[str(plugin["type"])], replace(args, delegates=delegates), conf)


def _reserved(node: Node, args: CmdArgs, conf: NetConf) -> None:
    """Does what host-local's CHECK does, by a look without the lock."""
    store = Store(host_local.data_dir(conf), conf.name)
    try:
        owners = node.owners(store)
    except FileNotFoundError:
        owners = {}
    except OSError as error:
        raise store.unusable(error) from error
    if not any(owner_of(args.container_id, name) in owners for name in (args.ifname, "")):
        raise CniError(
            Code.INTERNAL,
            f"host-local: Failed to find address added by container {args.container_id}",
            f"no reservation of {args.ifname} in {store.directory}: another pod may get its address; "
            "remove the container and create it again",
        )


def _other_ipam(node: Node, plugin: Mapping[str, object]) -> bool:
    try:
        ipam = Fields(plugin).section("ipam").string("type")
    except CniError:
        return False
    return bool(ipam) and ipam not in node.plugins


def _bridge(plugin: Mapping[str, object]) -> str:
    try:
        return Fields(plugin).string("bridge", "cni0")
    except CniError:
        return ""


CHECKS = (
    Check(
        _GROUP,
        "check",
        "the cache has no attachment that lives",
        _look,
        (_LOST_RULES, _SHADOWED, _WRONG, _REMARK, _NOT_ALL),
    ),
)
