"""Finds settings that a plugin refuses, and settings without effect or with an unexpected one.

Errors come from the plugin's own parser; warnings follow the plugin's README.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import redirect_stderr
from typing import NamedTuple

from cni import skel, versions
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError
from cni.fields import Fields
from cni.skel import Plugin
from podwire.lint.entry import PluginEntry
from podwire.lint.known import nearest
from podwire.lint.source import LintSeverity

_CONTEXT = re.compile(r"^failed to (load netconf|parse network configuration): ")
_TOP = re.compile(r"[.\[]")
_RATES = ("ingressRate", "egressRate", "ingressBurst", "egressBurst")
_KERNEL_TABLES = (253, 254, 255)  # default, main, local
# Stands for the ranges in the runtime's request; any range will do (TEST-NET-1, RFC 5737).
_SOME_RANGES = [[{"subnet": "192.0.2.0/24"}]]
# Capabilities that more plugins use than declare them.
_COMMON_CAPABILITIES = (
    "io.kubernetes.cri.pod-annotations",
    "cgroupPath",
    "deviceID",
    "infinibandGUID",
    "aliases",
    "dns",
)


def check(item: PluginEntry) -> None:
    """Checks one plugin's settings."""
    for plugin in item.parsers:
        _check_parsed(item, plugin)
    _check_capabilities(item)
    for rule in _RULES:
        for path, text, hint in rule(item):
            item.warn(path, text, hint)


def build_net_conf(item: PluginEntry, without: Collection[str] = ()) -> NetConf:
    """Returns the configuration as ADD gets it, but without a runtime's request for a pod.

    `without` are further keys to leave out, in lower case.
    """
    left_out = {"runtimeconfig", "prevresult", "plugins", *without}
    value = {key: value for key, value in item.value.items() if key.casefold() not in left_out}
    version = item.version if item.version in versions.SUPPORTED else versions.CURRENT
    values: dict[str, object] = {**value, "type": item.type, "name": item.network, "cniVersion": version}
    if item.is_set("capabilities.ipRanges") and not any(item.get(f"ipam.{key}") for key in ("subnet", "ranges")):
        values["runtimeConfig"] = {"ipRanges": _SOME_RANGES}
    return NetConf(item.network, version, Fields(values), values)


def _check_parsed(item: PluginEntry, plugin: Plugin) -> None:
    """Runs the plugin's parser repeatedly, each time without the key that it refused, until it accepts the rest.

    An error inside "ipam" ends this: without a part of it the rest makes no sense.
    """
    without: set[str] = set()
    while error := _parse_error(item, plugin, without):
        path = item.json_object.key_of(error) or ("ipam" if plugin is item.ipam and item.get("ipam") else "type")
        _add_error(item, path, f"{plugin.name}: {_CONTEXT.sub('', error.msg)}", error.details)
        top = _TOP.split(path, maxsplit=1)[0].casefold()
        if top in without or top in ("ipam", "type") or item.get(top) is None:
            return
        without.add(top)


def _parse_error(item: PluginEntry, plugin: Plugin, without: Collection[str]) -> CniError | None:
    if plugin.parse is None:
        return None
    try:
        with redirect_stderr(io.StringIO()):
            plugin.parse(
                CmdArgs("ADD", "lint", "", "eth0", "", (), {}, item.json_object.text), build_net_conf(item, without)
            )
    except CniError as error:
        return error
    except Exception as error:
        return skel.as_cni_error(error)
    return None


def _add_error(item: PluginEntry, path: str, text: str, hint: str) -> None:
    """Adds an error unless the key already has one; replaces warnings about the key."""
    full, findings = item.json_object.full(path).casefold(), item.json_object.source.findings
    if not any(one.key.casefold() == full and one.severity == LintSeverity.ERROR for one in findings):
        findings[:] = [one for one in findings if one.key.casefold() != full or one.severity != LintSeverity.WARNING]
        item.error(path, text, hint)


def _check_capabilities(item: PluginEntry) -> None:
    declared = item.get("capabilities")
    if not isinstance(declared, dict) or not item.plugin or (item.ipam_type and not item.ipam):
        return
    known = tuple(dict.fromkeys(name for plugin in item.parsers for name in plugin.capabilities))
    for name in declared:
        if name in known or name in _COMMON_CAPABILITIES:
            continue
        if likely := nearest(name, known):
            item.warn(f"capabilities.{name}", f'unknown capability "{name}"', f'did you mean "{likely}"?')
        else:
            hint = f"it uses {', '.join(known)}" if known else "it uses none"
            item.note(f"capabilities.{name}", f'{item.type} does not use the capability "{name}"', hint)


class _Remark(NamedTuple):
    path: str
    text: str
    hint: str


def _undeclared_capabilities(item: PluginEntry) -> Iterator[_Remark]:
    """Finds plugins whose capability is not declared."""
    has_request = item.get("runtimeConfig") is not None
    if item.type == "portmap" and not has_request and not item.is_set("capabilities.portMappings"):
        text = "no host port will ever be published: the runtime passes none without the capability"
        yield _Remark("type", text, 'add "capabilities": {"portMappings": true}')
    limits = any(item.get(key) for key in _RATES)
    if item.type == "bandwidth" and not has_request and not limits and not item.is_set("capabilities.bandwidth"):
        text = "nothing will ever be limited: there are no rates, and the runtime passes none without the capability"
        yield _Remark("type", text, 'add "capabilities": {"bandwidth": true}, or rates')
    if item.type == "bandwidth" and item.is_set("capabilities.bandwidth"):
        for key in _RATES:
            if item.get(key) is not None:
                text = f'"{key}" overrides the runtime\'s limits'
                yield _Remark(key, text, "remove the rates or the capability")
                break


def _addressless(item: PluginEntry) -> Iterator[_Remark]:
    """Finds settings that need addresses, in plugins without IPAM."""
    if item.type not in ("bridge", "ptp") or item.ipam_type:
        return
    if item.type == "bridge" and item.get("ipam"):
        yield _Remark(
            "ipam", '"ipam" has no "type": pods get no addresses', 'add "type": "host-local", or remove "ipam"'
        )
    for key in ("isGateway", "isDefaultGateway", "ipMasq"):
        if item.is_set(key):
            yield _Remark(key, f'"{key}" does nothing without addresses', 'add an "ipam", or remove the key')


def _incomplete(item: PluginEntry) -> Iterator[_Remark]:
    """Finds keys that do nothing without another one."""
    needs: dict[str, tuple[tuple[str, str], ...]] = {
        "bridge": (
            ("ipMasqBackend", "ipMasq"),
            ("nonMasqueradeCIDRs", "ipMasq"),
            ("nonMasqueradeCluster", "ipMasq"),
            ("forceAddress", "isGateway isDefaultGateway"),
            ("preserveDefaultVlan", "vlan vlanTrunk"),
        ),
        "ptp": (("ipMasqBackend", "ipMasq"), ("nonMasqueradeCIDRs", "ipMasq"), ("nonMasqueradeCluster", "ipMasq")),
        "tuning": (("mtuBothEnds", "mtu args.cni.mtu"),),
    }
    for key, others in needs.get(item.type, ()):
        if item.get(key) and not any(item.get(other) for other in others.split()):
            required = " or ".join(f'"{other}"' for other in others.split())
            yield _Remark(key, f'"{key}" does nothing without {required}', "set that, too, or remove the key")
    if item.ipam and item.ipam.name == "host-local" and item.get("ipam.subnet") is None:
        for key in ("rangeStart", "rangeEnd", "gateway"):
            if item.get(f"ipam.{key}") is not None:
                text = f'"{key}" does nothing without "subnet" beside it'
                yield _Remark(f"ipam.{key}", text, 'move it into the range in "ranges"')


def _contradictory(item: PluginEntry) -> Iterator[_Remark]:
    """Finds keys that contradict each other."""
    if item.type == "bridge" and item.is_set("isDefaultGateway") and item.get("isGateway") is False:
        text = '"isGateway" is false, but "isDefaultGateway" makes the bridge a gateway'
        yield _Remark("isGateway", text, "remove one of them")
    if item.type == "portmap" and item.is_set("masqAll") and item.get("snat") is False:
        yield _Remark("masqAll", '"masqAll" does nothing with "snat" set to false', 'remove "snat"')
    if item.type == "sbr" and item.get("table") is not None:
        for key in ("gateways", "addSourceHints"):
            if item.get(key):
                yield _Remark(
                    key, f'"{key}" does nothing with "table", which something else fills', "remove one of them"
                )
        if item.get("table") in _KERNEL_TABLES:
            text = f"table {item.get('table')} is a table of the kernel, which every packet uses without a rule"
            yield _Remark("table", text, "use the number of a table that the pod has for this, or remove the key")
    if item.type == "vrf" and item.get("table") in _KERNEL_TABLES:
        text = f"table {item.get('table')} is a table of the kernel, which every packet uses: the VRF isolates nothing"
        yield _Remark("table", text, "use another number, or remove the key")
    static = item.ipam and item.ipam.name == "static"
    has_requested_ips = item.is_set("capabilities.ips") or item.get("args.cni.ips")
    if static and not item.get("ipam.addresses") and not has_requested_ips:
        text = "static has no address to allocate"
        yield _Remark("ipam", text, 'add "addresses", or "capabilities": {"ips": true} for a runtime that chooses')


def _questionable(item: PluginEntry) -> Iterator[_Remark]:
    """Finds values that the kernel accepts, but that seldom do what is meant."""
    if item.type == "vlan" and not item.get("vlanId"):
        path = "type" if item.get("vlanId") is None else "vlanId"
        text = "VLAN ID 0 is a tag without a VLAN: the packets only carry a priority"
        yield _Remark(path, text, 'set "vlanId" to the ID of the VLAN, 1 to 4094')
    if item.type == "macvlan" and item.get("mac"):
        is_ignored = item.get("mode") == "passthru"
        text = (
            'with mode "passthru" the interface has the MAC address of its master, and "mac" is ignored'
            if is_ignored
            else '"mac" gives every pod of this network the same MAC address: a second pod on the node gets none'
        )
        hint = "remove the key" if is_ignored else 'remove the key, or use "capabilities": {"mac": true}'
        yield _Remark("mac", text, hint)
    if item.type == "ipvlan" and item.get("mode") in ("l3", "l3s"):
        for path in _gateways(item):
            text = f'"gateway" does nothing in mode {item.get("mode")}: the host routes the packets'
            yield _Remark(path, text, 'remove it, or use mode "l2"')


def _unreachable_dhcp(item: PluginEntry) -> Iterator[_Remark]:
    """Finds networks whose pods reach no DHCP server, or get in its way."""
    if item.ipam_type != "dhcp":
        return
    if item.type in ("dummy", "ptp"):
        reason = "a pod of ptp is connected to its node only" if item.type == "ptp" else "dummy is connected to nothing"
        yield _Remark("ipam.type", f"dhcp reaches no server: {reason}", "use bridge, macvlan or vlan")
    if item.type == "bridge":
        for key in ("isGateway", "isDefaultGateway"):
            if item.is_set(key):
                text = f'"{key}" gives the bridge the address of the DHCP server\'s router: two hosts then have it'
                yield _Remark(key, text, "remove the key: the pods' gateway is the router that the server names")


def _gateways(item: PluginEntry) -> Iterator[str]:
    """Yields the keys of the gateways that the IPAM configuration sets."""
    if item.get("ipam.gateway"):
        yield "ipam.gateway"
    ranges = item.get("ipam.ranges")
    for number, inner in enumerate(ranges if isinstance(ranges, list) else []):
        for index, one in enumerate(inner if isinstance(inner, list) else []):
            if isinstance(one, dict) and one.get("gateway"):
                yield f"ipam.ranges[{number}][{index}].gateway"


_RULES: tuple[Callable[[PluginEntry], Iterator[_Remark]], ...] = (
    _undeclared_capabilities,
    _addressless,
    _incomplete,
    _contradictory,
    _questionable,
    _unreachable_dhcp,
)
