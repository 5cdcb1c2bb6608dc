"""The vocabulary of docs/glossary.md: names, docstrings, comments and messages avoid the words that it replaced."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.binaries import ROOT

# Words that identifiers must not contain, and their replacements.
IDENTIFIERS = {
    "apart": "background",
    "asked": "the noun: options, requested",
    "claims": "port conflicts",
    "cure": "fix, hint",
    "cures": "fixes, hints",
    "doing": "description",
    "fitted": "the effect: compute_mtu, ensure_mac",
    "found": "existing_rules, or the noun",
    "given": "the noun: ipam_result, options",
    "inside": "container_veth, container_link",
    "leads": "forwards, target",
    "living": "running",
    "made": "created",
    "mend": "repair",
    "outside": "host_veth, host_link",
    "own": "conf (the plugin's), net_conf (the network's), or the noun",
    "pick": "get_attributes, attribute offsets",
    "picks": "get_attributes, attribute offsets",
    "rehearse": "warm_up, try",
    "rehearsal": "warm_up, dry_run",
    "retract": "remove_rules",
    "scenes": "scenarios",
    "settled": "the effect: ensure_mac",
    "taken": "used, allocated",
    "tell": "report, log, describe",
    "tells": "reports, describes",
    "told": "description, reported",
    "wanted": "desired, or the noun",
    "whose": "owner",
}

# Patterns that sentences must not contain, and their replacements.
PROSE = {
    r"\b(tell|tells|told|telling)\b": "reports, logs, prints, describes, returns whether",
    r"\b(mend|mends|mended|mending)\b": "repair",
    r"\b(cure|cures|cured)\b": "fix",
    r"\b(rehears\w+|cardboard|scenes?)\b": "warm-up, dry run, scenario",
    r"\b(nobody|anybody|somebody|whoever)\b": "the noun: no process, a caller, another plugin",
    r"\b(for|of|by|to|from|with|and|or|than) who\b": "a noun before 'who': for node operators",
    r"(?:^|[.:;] )[Ww]ho(se)?\b(?!.*\?)": "a noun: the container that ..., the plugin that ...",
    r"\b(taken|takes?|took|taking) (it |them |that |this )?back\b": "roll back (ADD), reclaim (leases)",
    r"\bleads? (a |ports? |host ports? |it )?(of the host )?to (a |the )?pods?\b": "forwards, publishes",
}

# Exceptions: texts of the reference plugins, quotations and JSON keys, as a part of the reported line, by file.
ALLOWED: dict[str, tuple[str, ...]] = {
    "podwire/commands/doctor.py": ('"cure',),  # a JSON key, and the label before a fix
    "podwire/commands/ipam.py": ('"cure"',),  # a JSON key
    "podwire/node/model.py": ('"cure"',),  # a JSON key
}

# The files and directories that are checked.
ROOMS: tuple[str, ...] = (
    "attachment",
    "bench",
    "cni",
    "docs/figures.py",
    "ipam",
    "kernel",
    "pack",
    "plugins",
    "podwire",
    "process",
    "tests/arm64",
    "tests/conftest.py",
    "tests/fuzz",
    "tests/hard",
    "tests/netns/test_bridge_add.py",
    "tests/netns/test_bridge_backend.py",
    "tests/netns/test_bridge_backend_without_nft_nat.py",
    "tests/netns/test_bridge_check.py",
    "tests/netns/test_bridge_del.py",
    "tests/netns/test_bridge_faults.py",
    "tests/netns/test_bridge_fixes.py",
    "tests/netns/test_bridge_gateway.py",
    "tests/netns/test_bridge_ipv6.py",
    "tests/netns/test_bridge_layer2.py",
    "tests/netns/test_bridge_mac_spoof.py",
    "tests/netns/test_bridge_many.py",
    "tests/netns/test_bridge_masquerade_nftables.py",
    "tests/netns/test_bridge_mtu.py",
    "tests/netns/test_bridge_neighbours.py",
    "tests/netns/test_bridge_netfilter.py",
    "tests/netns/test_bridge_port.py",
    "tests/netns/test_bridge_range.py",
    "tests/netns/test_bridge_refusals.py",
    "tests/netns/test_bridge_rollback.py",
    "tests/netns/test_bridge_takeover.py",
    "tests/netns/test_bridge_vlan.py",
    "tests/netns/test_bridge_vlan_check.py",
    "tests/netns/test_bridge_vlan_filtering.py",
    "tests/netns/test_bridge_vlan_gateway.py",
    "tests/netns/test_bridge_vlan_repair.py",
    "tests/netns/test_del_host_end.py",
    "tests/netns/test_docs.py",
    "tests/netns/test_firewall_firewalld.py",
    "tests/netns/test_firewall_iptables.py",
    "tests/netns/test_firewall_iptables_owners.py",
    "tests/netns/test_firewall_iptables_traffic.py",
    "tests/netns/test_firewall_nftables.py",
    "tests/netns/test_firewall_nftables_races.py",
    "tests/netns/test_firewall_nftables_records.py",
    "tests/netns/test_firewall_policies.py",
    "tests/netns/test_golden.py",
    "tests/netns/test_golden_bandwidth.py",
    "tests/netns/test_golden_portmap_iptables.py",
    "tests/netns/test_golden_portmap_nftables.py",
    "tests/netns/test_iptables_direct.py",
    "tests/netns/test_iptables_program.py",
    "tests/netns/test_iptables_switched.py",
    "tests/netns/test_isolated.py",
    "tests/netns/test_kernel_nft.py",
    "tests/netns/test_kernel_nft_rules.py",
    "tests/netns/test_kernel_nft_set.py",
    "tests/netns/test_kernel_rtnl.py",
    "tests/netns/test_kernel_sysctl.py",
    "tests/netns/test_kernel_traffic.py",
    "tests/netns/test_kubenet.py",
    "tests/netns/test_locks.py",
    "tests/netns/test_logs.py",
    "tests/netns/test_loopback.py",
    "tests/netns/test_masquerade_iptables.py",
    "tests/netns/test_masquerade_nftables.py",
    "tests/netns/test_multus.py",
    "tests/netns/test_portmap_conditions.py",
    "tests/netns/test_portmap_conntrack.py",
    "tests/netns/test_portmap_iptables.py",
    "tests/netns/test_portmap_iptables_others.py",
    "tests/netns/test_portmap_iptables_takeover.py",
    "tests/netns/test_portmap_localhost.py",
    "tests/netns/test_portmap_loopback_guard.py",
    "tests/netns/test_portmap_nftables.py",
    "tests/netns/test_portmap_nftables_others.py",
    "tests/netns/test_portmap_shared_ports.py",
    "tests/netns/test_portmap_traffic.py",
    "tests/netns/test_portmap_two_interfaces.py",
    "tests/netns/test_portmap_verbs.py",
    "tests/netns/test_printed_commands.py",
    "tests/netns/test_ptp.py",
    "tests/netns/test_ptp_check_del.py",
    "tests/netns/test_record.py",
    "tests/netns/test_second_kernel.py",
    "tests/netns/test_status.py",
    "tests/netns/test_tool_doctor.py",
    "tests/netns/test_tool_doctor_causes.py",
    "tests/netns/test_tool_doctor_faults.py",
    "tests/netns/test_tool_doctor_plugins.py",
    "tests/netns/test_tool_doctor_routes.py",
    "tests/netns/test_tool_doctor_running.py",
    "tests/netns/test_tool_dry_run.py",
    "tests/netns/test_tool_gc.py",
    "tests/netns/test_tool_incomplete.py",
    "tests/netns/test_tool_install_range.py",
    "tests/netns/test_tool_ipam.py",
    "tests/netns/test_tool_networks.py",
    "tests/netns/test_tool_repair.py",
    "tests/netns/test_tool_repair_others.py",
    "tests/netns/test_tool_runtimes.py",
    "tests/netns/test_tool_show.py",
    "tests/netns/test_tool_show_check.py",
    "tests/netns/test_tool_status.py",
    "tests/netns/test_tool_verbs.py",
    "tests/netns/test_tool_views.py",
    "tests/netns/test_tuning_attributes.py",
    "tests/netns/test_tuning_golden.py",
    "tests/netns/test_tuning_mtu.py",
    "tests/netns/test_tuning_rollback.py",
    "tests/netns/test_tuning_sysctls.py",
    "tests/netns/test_tuning_takeover.py",
    "tests/netns/test_two_networks.py",
    "tests/pack",
    "tests/promises.py",
    "tests/runner",
    "tests/spec",
    "tests/support",
    "tests/unit/test_attachment_cache.py",
    "tests/unit/test_attachment_host_veth.py",
    "tests/unit/test_attachment_presence.py",
    "tests/unit/test_attachment_sandbox.py",
    "tests/unit/test_bridge_conf.py",
    "tests/unit/test_codec.py",
    "tests/unit/test_codec_traffic.py",
    "tests/unit/test_conntrack.py",
    "tests/unit/test_dbus.py",
    "tests/unit/test_docs.py",
    "tests/unit/test_docs_messages.py",
    "tests/unit/test_docs_repair.py",
    "tests/unit/test_docs_runtimes.py",
    "tests/unit/test_docs_structure.py",
    "tests/unit/test_doctor.py",
    "tests/unit/test_doctor_locks.py",
    "tests/unit/test_firewall_conf.py",
    "tests/unit/test_firewall_iptables.py",
    "tests/unit/test_iptables.py",
    "tests/unit/test_iptables_masquerade.py",
    "tests/unit/test_kernels.py",
    "tests/unit/test_keys.py",
    "tests/unit/test_link_deletion.py",
    "tests/unit/test_lint.py",
    "tests/unit/test_lint_directory.py",
    "tests/unit/test_lint_fuzz.py",
    "tests/unit/test_lint_places.py",
    "tests/unit/test_log.py",
    "tests/unit/test_masquerade_options.py",
    "tests/unit/test_mounts.py",
    "tests/unit/test_netlink.py",
    "tests/unit/test_nft.py",
    "tests/unit/test_portmap_conditions.py",
    "tests/unit/test_portmap_conf.py",
    "tests/unit/test_portmap_iptables.py",
    "tests/unit/test_portmap_port_conflicts.py",
    "tests/unit/test_positions.py",
    "tests/unit/test_printed_commands.py",
    "tests/unit/test_process_child.py",
    "tests/unit/test_process_record.py",
    "tests/unit/test_process_undo.py",
    "tests/unit/test_process_values.py",
    "tests/unit/test_ptp_conf.py",
    "tests/unit/test_runner.py",
    "tests/unit/test_runtimes.py",
    "tests/unit/test_tool_command_tree.py",
    "tests/unit/test_tool_installing.py",
    "tests/unit/test_tool_legacy.py",
    "tests/unit/test_tool_lock.py",
    "tests/unit/test_tool_map.py",
    "tests/unit/test_tool_node.py",
    "tests/unit/test_tool_output.py",
    "tests/unit/test_tool_repairing.py",
    "tests/unit/test_tool_verbs.py",
    "tests/unit/test_tuning_backup.py",
    "tests/unit/test_tuning_conf.py",
    "tests/unit/test_vlan.py",
    "tests/unit/test_wire.py",
)


def sources() -> Iterator[Path]:
    """Yields the Python files of ROOMS."""
    for room in ROOMS:
        path = ROOT / room
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yields the names that a module defines: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def sentences(text: str) -> Iterator[str]:
    """Yields the comments and strings of a module, except strings of one word."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield token.string.removeprefix("#").strip()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.value


def retired_in(text: str) -> list[str]:
    """Returns the retired words of a module, each with its replacement."""
    words = {word for name in identifiers(ast.parse(text)) for word in re.split(r"_+", name.lower())}
    names = [f"{word}: use {IDENTIFIERS[word]}" for word in sorted(words & IDENTIFIERS.keys())]
    return names + [
        f"{match[0].strip()!r} in {sentence[max(0, match.start() - 30) : match.end() + 30]!r}: use {replacement}"
        for sentence in sentences(text)
        for pattern, replacement in PROSE.items()
        if (match := re.search(pattern, sentence, re.MULTILINE))
    ]


@pytest.mark.parametrize("path", [str(path.relative_to(ROOT)) for path in sources()] or ["cni/versions.py"])
def test_no_retired_word_is_used(path: str):
    """Identifiers, docstrings, comments and messages use the words of the glossary."""
    allowed = ALLOWED.get(path, ())
    retired = [line for line in retired_in((ROOT / path).read_text()) if not any(part in line for part in allowed)]
    assert retired == []


def test_retired_words_are_reported():
    """Retired words are reported in names, docstrings, comments and messages."""
    text = 'def own_ips(found):\n    """Tells whose it is."""\n    raise E("who is gone is told")  # for who looks\n'
    assert len(retired_in(text)) == 5
