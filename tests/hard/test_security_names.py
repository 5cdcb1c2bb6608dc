"""Hostile texts in names: the plugin rejects a text with an error, or treats it as one word.

Each text is tried in each place where a runtime or a configuration can put it. An accepted attachment is deleted again,
and then nothing may remain: no rule, no link, no file outside the lease directory.
"""

import itertools
import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.spec import configs
from tests.support import kernels, netstate
from tests.support.invocation import run_plugin
from tests.support.processes import output
from tests.support.results import prev_result

TEXTS = [
    *("", " ", '"', "'", "\\", '\\"', "a\nb", "\n", "a\tb", "\r", "\0", "a\0b", "\x1b[2J", "\x7f", "\u2028", "\u202e"),
    *("..", ".", "../../etc/passwd", "/", "/etc/passwd", "a/b", "-x", "--help", "!", "-j", "%d", "%s%n", "*", "+", "~"),
    *("$(id)", "`id`", "a;b", "a|b", "&", "{", "}", "#", "é", "\U0001f600", "x" * 15, "x" * 16, "x" * 256, "x" * 4096),
    *('e"0', "e'0", "e\\0", "e;}0", 'x" -j ACCEPT', "x\nCOMMIT\n*filter", "x\n-A INPUT -j DROP", "all", "default"),
]
COMMENT = re.compile(r'--comment ("(?:[^"\\]|\\.)*"|\S+)')
SIBLINGS = ("portmap", "bandwidth", "host-local", "bridge", "static", "ptp", "tuning", "firewall")
WITH_RESULT = ("portmap", "bandwidth", "tuning", "firewall")
SYSCTL = "net.ipv4.conf.IFNAME.arp_filter"
ON_A_VETH = ("bandwidth", "sbr", "tuning")  # they work on an existing interface


class Target:
    """A host with a pod, and configurations of plugins, by default minimal ones; `run` attaches and detaches."""

    def __init__(self, host, sandbox, tmp_path):
        self.host, self.sandbox, self.tmp_path = host, sandbox, tmp_path
        self.store = tmp_path / "leases"
        ipam = {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}]], "dataDir": str(self.store)}
        static = {"type": "static", "addresses": [{"address": "10.22.0.7/16"}], "routes": [{"dst": "10.0.0.0/8"}]}
        common = {"cniVersion": "1.0.0", "name": "net"}
        chained = {**common, "prevResult": prev_result("1.0.0", "10.22.0.2/16")}
        mappings = {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}
        spoof = {"macspoofchk": True} if kernels.has("nft_bridge") else {}
        masquerade = {"ipMasq": True, "ipMasqBackend": "nftables" if kernels.has("nft_nat") else "iptables"}
        self.configs: dict[str, dict[str, Any]] = {
            "host-local": {**common, "ipam": ipam},
            "bridge": {**common, "bridge": "cni0", "isGateway": True, **masquerade, **spoof, "ipam": ipam},
            "portmap": {**chained, "runtimeConfig": mappings},
            "bandwidth": {**common, "ingressRate": 1000000, "ingressBurst": 1000000},
            "loopback": {**common},
            "static": {**common, "ipam": static},
            "ptp": {**common, **masquerade, "ipam": ipam},
            "tuning": {**chained, "sysctl": {SYSCTL: "1"}, "mtu": 1400, "dataDir": str(self.store / "tuning")},
            "firewall": {**chained, "backend": masquerade["ipMasqBackend"]},
        }
        sandbox.ip("link", "add", "shaped0", "type", "veth", "peer", "name", "h0", "netns", host.name)
        self.configs["bandwidth"]["prevResult"] = prev_result("1.0.0", "10.22.0.2/16", host_interfaces=["h0"])
        result = prev_result("1.0.0", "10.22.0.2/16", ifname="shaped0")
        self.configs["sbr"] = {**common, "table": 5000, "prevResult": result}

    def run(self, plugin, *path_and_text, between=None, **options):
        """Runs ADD, CHECK and DEL with a text at a path of the configuration; returns whether ADD succeeded."""
        minimal = self.configs.get(plugin) or configs.config(plugin, "1.0.0", self.store)
        config = json.loads(json.dumps(minimal))
        if path_and_text:
            *path, last, text = path_and_text
            place = config
            for key in path:
                place = place.setdefault(key, {}) if isinstance(key, str) else place[key]
            place[last] = text
        options = {
            "ifname": "shaped0" if plugin in ON_A_VETH else "eth0",
            "netns": self.sandbox,
            "host": self.host,
        } | options
        status = {}
        for command in ("ADD", "CHECK", "DEL"):
            outcome = run_plugin(plugin, command, config, **options)
            if outcome.status:
                error = outcome.error()
                assert "defect of podwire" not in error.get("details", ""), error
            for line in outcome.stderr.split("\n"):
                assert all(char.isprintable() for char in line), repr(line)
            status[command] = outcome.status
            if between and command == "ADD" and outcome.status == 0:
                between()
        return status["ADD"] == 0

    def state(self):
        """Returns the state that must not change: the network, and all files outside the lease directory."""
        for name, link in netstate.links(self.host).items():
            if link.get("linkinfo", {}).get("info_kind") == "bridge" and name != "cni0":
                self.host.ip("link", "delete", "dev", name)  # DEL keeps bridges by design
        files = sorted(str(path) for path in self.tmp_path.rglob("*") if not str(path).startswith(str(self.store)))
        reservations = sorted(file.name for file in self.store.glob("*/1*"))
        return netstate.state(self.host, netfilter=True), netstate.state(self.sandbox), files, reservations


@pytest.fixture
def target(bin_dir, host, sandbox, tmp_path, monkeypatch):
    """A host on which each plugin has run once, so that all shared objects exist."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    target = Target(host, sandbox, tmp_path)
    for plugin in target.configs:
        assert target.run(plugin), plugin
    for backend in ("iptables", "nftables"):
        target.run("portmap", "backend", backend)
        target.run("firewall", "backend", backend)
    return target


PLACES: dict[str, list[tuple[Any, ...]]] = {
    "name": [(plugin, "name") for plugin in (*SIBLINGS, "loopback")],
    "version": [(plugin, "cniVersion") for plugin in SIBLINGS],
    "bridge": [("bridge", "bridge"), ("bridge", "ipMasqBackend"), ("bridge", "mtu"), ("bridge", "type")],
    "ipam": [("bridge", "ipam", "type"), ("host-local", "ipam", "resolvConf"), ("host-local", "ipam", "subnet")],
    "static": [
        *(("static", "ipam", "addresses", 0, key) for key in ("address", "gateway")),
        *(("static", "ipam", "routes", 0, key) for key in ("dst", "gw")),
        *(("static", "ipam", "dns", "nameservers"), ("static", "args", "cni", "ips")),
    ],
    "ptp": [("ptp", "ipam", "type"), ("ptp", "ipMasqBackend"), ("ptp", "mtu"), ("ptp", "type")],
    "tuning": [
        *(("tuning", "sysctl", SYSCTL), ("tuning", "args", "cni", "sysctl", SYSCTL), ("tuning", "mac")),
        *(("tuning", "args", "cni", "mac"), ("tuning", "runtimeConfig", "mac"), ("tuning", "mtu")),
    ],
    "firewall": [("firewall", key) for key in ("backend", "ingressPolicy", "firewalldZone")],
    "mac": [("bridge", "runtimeConfig", "mac"), ("bridge", "args", "cni", "mac"), ("bridge", "args", "cni", "ips")],
    "portmap": [("portmap", "backend"), ("portmap", "onConflict"), ("portmap", "externalSetMarkChain")],
    "mapping": [("portmap", "runtimeConfig", "portMappings", 0, key) for key in ("protocol", "hostIP")],
    "result": [
        *((plugin, "prevResult", "interfaces", 0, "name") for plugin in ("bridge", *WITH_RESULT)),
        *((plugin, "prevResult", "interfaces", 0, "sandbox") for plugin in WITH_RESULT),
        *((plugin, "prevResult", "ips", 0, "address") for plugin in WITH_RESULT),
    ],
}


@pytest.fixture
def texts(nightly, request):
    """All texts; in `make test-all` every fifth, starting with another one for each test."""
    start = request.session.items.index(request.node) % 5
    return TEXTS if nightly else TEXTS[start::5]


@pytest.mark.parametrize("where", PLACES)
def test_hostile_text_in_the_configuration(target, texts, where):
    """A text in the configuration is rejected or is one word, nothing else changes, and DEL removes everything."""
    target.configs["bridge"]["prevResult"] = prev_result("1.0.0", "10.22.0.2/16")
    before = target.state()
    accepted = 0
    for place, text in itertools.product(PLACES[where], texts):
        accepted += target.run(*place, text)
    assert accepted < len(PLACES[where]) * len(texts)  # many are rejected
    assert target.state() == before


@pytest.mark.parametrize("variable", ["container_id", "ifname", "netns", "path", "args"])
def test_hostile_text_in_the_environment(target, texts, plugin, variable):
    """A text in a variable is rejected or is one word, nft's listing remains loadable, and DEL removes everything."""
    before = target.state()
    for text in texts:
        if "\0" not in text:
            target.run(plugin, between=lambda: assert_loadable(target.host), **{variable: text})
    assert target.state() == before


def assert_loadable(host):
    """Asserts that nft and iptables can load their own listings."""
    with host.entered():
        ruleset = host.run("nft", "list", "ruleset")
        Path("ruleset").write_text("".join(f"{line}\n" for line in ruleset.splitlines() if "xt match" not in line))
        try:
            if "# Warning" not in ruleset:  # nft cannot load tables of iptables-nft
                host.run("nft", "-c", "-f", "ruleset")
            Path("ruleset").write_text(host.run("iptables-save"))
            host.run("iptables-restore", "--test", "ruleset")
        finally:
            os.unlink("ruleset")


def test_hostile_text_in_a_condition_is_one_word(target):
    """A text in iptables' conditions is exactly one argument, or an error without any rule."""
    before = target.state()
    accepted = []

    def read_back(text):
        rules = target.host.run("iptables-save", "-t", "nat").split("\n")
        (rule,) = [line for line in rules if line.startswith("-A CNI-HOSTPORT-DNAT ")]
        _, comment = COMMENT.findall(rule)
        assert re.sub(r"\\(.)", r"\1", comment.removeprefix('"').removesuffix('"')) == text[:255]  # the kernel's limit
        accepted.append(text)

    for text in TEXTS:
        words = ["-s", "10.0.0.0/8", "-m", "comment", "--comment", text]
        target.run("portmap", "conditionsV4", words, between=partial(read_back, text))
    assert {'"', "'", "\\", 'x" -j ACCEPT', "$(id)", "-x", " ", "é"} <= set(accepted)
    assert target.state() == before


@pytest.mark.needs("iptables_nft_nat")
def test_name_of_the_admin_chain_is_one_word(target, texts):
    """The configured name of the admin chain is the one that iptables lists, or an error without any change."""
    target.configs["firewall"]["backend"] = "iptables"

    def assert_chain_exists(name):
        saved = target.host.run("iptables-save")
        assert f"\n:{name or 'CNI-ADMIN'} " in saved
        with target.host.entered():
            output("iptables-restore", "--test", stdin=saved)

    for text in texts:
        before = target.state()
        if not target.run("firewall", "iptablesAdminChainName", text, between=partial(assert_chain_exists, text)):
            assert target.state() == before, text  # DEL keeps the admin chain of an accepted text


def test_overlong_line_does_not_become_a_second_line(target):
    """Conditions of more than 10 KB, where iptables-restore would start a new line, are rejected."""
    before = target.state()
    for count in (40, 60, 85, 120, 3000):
        words = ["-s", "10.0.0.0/8", *["x" * (10_300 // count)] * count, "-A INPUT -j DROP"]
        assert not target.run("portmap", "conditionsV4", words)
    for empty in ([""] * 3500, ["-s", "10.0.0.0/8", *[""] * 3500]):
        assert not target.run("portmap", "conditionsV4", empty)
    assert target.state() == before


def test_long_container_id(target):
    """DEL and GC release the address of a container whose ID is longer than a memory page."""
    for number, container_id in enumerate(("x" * 5000, "x" * 60_000, "x" * 120_000)):
        for command in ("DEL", "GC"):
            keys = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": []}
            config = {**target.configs["host-local"], "name": f"n{number}", **keys}
            options = {"host": target.host, "container_id": container_id, "netns": target.sandbox}
            first = run_plugin("host-local", "ADD", config, **options).result()
            run_plugin("host-local", "CHECK", config, **options).assert_silent()
            assert run_plugin("host-local", "ADD", config, **options).status == 1, first  # the container has an address
            options["container_id"] = container_id if command == "DEL" else None
            run_plugin("host-local", command, config, **options).assert_silent()
            assert list(target.store.glob(f"n{number}/10*")) == []
