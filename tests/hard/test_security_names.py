"""Texts from outside: whatever is in a name, it is refused with an error, or stays the one word that it is.

Each text goes into each place where a runtime or a configuration can put it. What is accepted is detached again, and
nothing may be left then: no rule, no link, no file beside the lease directory.
"""

import itertools
import json
import os
import re
from functools import partial
from pathlib import Path

import pytest

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
ON_A_PAIR = ("bandwidth", "tuning")  # work on an interface that is there


class Target:
    """A host with a pod and configurations of all plugins, into which a text is put; `run` attaches and detaches."""

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
        self.configs = {
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

    def run(self, plugin, *path_and_text, between=None, **how):
        """Runs ADD and DEL with the text at a path of the configuration; tells whether ADD succeeded."""
        config = json.loads(json.dumps(self.configs[plugin]))
        if path_and_text:
            *path, last, text = path_and_text
            place = config
            for key in path:
                place = place.setdefault(key, {}) if isinstance(key, str) else place[key]
            place[last] = text
        how = {"ifname": "shaped0" if plugin in ON_A_PAIR else "eth0", "netns": self.sandbox, "host": self.host} | how
        status = {}
        for command in ("ADD", "CHECK", "DEL"):
            outcome = run_plugin(plugin, command, config, **how)
            judge(outcome)
            status[command] = outcome.status
            if between and command == "ADD" and outcome.status == 0:
                between()
        return status["ADD"] == 0

    def state(self):
        """Returns what must not change: the network, and all files but the leases'."""
        for name, link in netstate.links(self.host).items():
            if link.get("linkinfo", {}).get("info_kind") == "bridge" and name != "cni0":
                self.host.ip("link", "delete", "dev", name)  # a bridge stays, as it should
        files = sorted(str(path) for path in self.tmp_path.rglob("*") if not str(path).startswith(str(self.store)))
        reservations = sorted(file.name for file in self.store.glob("*/1*"))
        return netstate.state(self.host, netfilter=True), netstate.state(self.sandbox), files, reservations


def judge(outcome):
    """Demands an error object or success, no word of a defect, and a stderr that no terminal and no log obeys."""
    if outcome.status:
        error = outcome.error()
        assert "defect of podwire" not in error.get("details", ""), error
    for line in outcome.stderr.split("\n"):
        assert all(char.isprintable() for char in line), repr(line)


@pytest.fixture
def target(bin_dir, host, sandbox, tmp_path, monkeypatch):
    """The host, on which each plugin has been once, so that what all pods share is there."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    found = Target(host, sandbox, tmp_path)
    for plugin in found.configs:
        assert found.run(plugin), plugin
    for backend in ("iptables", "nftables"):
        found.run("portmap", "backend", backend)
        found.run("firewall", "backend", backend)
    return found


CONFIGURED = {
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
    """The texts, in the sample of `make test` every fifth, from one test to the next another fifth."""
    start = request.session.items.index(request.node) % 5
    return TEXTS if nightly else TEXTS[start::5]


@pytest.mark.parametrize("where", CONFIGURED)
def test_a_text_in_a_configuration(target, texts, where):
    """It is refused, or is one word; nothing else changes, and what it made is gone afterwards."""
    target.configs["bridge"]["prevResult"] = prev_result("1.0.0", "10.22.0.2/16")
    before = target.state()
    accepted = 0
    for place, text in itertools.product(CONFIGURED[where], texts):
        accepted += target.run(*place, text)
    assert accepted < len(CONFIGURED[where]) * len(texts)  # many are refused
    assert target.state() == before


@pytest.mark.parametrize("variable", ["container_id", "ifname", "netns", "path", "args"])
def test_a_text_in_the_environment(target, texts, plugin, variable):
    """It is refused, or is one word; what nft lists then could be loaded again, and it is all gone afterwards."""
    before = target.state()
    for text in texts:
        if "\0" not in text:
            target.run(plugin, between=lambda: loadable(target.host), **{variable: text})
    assert target.state() == before


def loadable(host):
    """Demands that what nft and iptables list is text that they take."""
    with host.entered():
        ruleset = host.run("nft", "list", "ruleset")
        Path("ruleset").write_text("".join(f"{line}\n" for line in ruleset.splitlines() if "xt match" not in line))
        try:
            if "# Warning" not in ruleset:  # iptables' tables are for its own tool
                host.run("nft", "-c", "-f", "ruleset")
            Path("ruleset").write_text(host.run("iptables-save"))
            host.run("iptables-restore", "--test", "ruleset")
        finally:
            os.unlink("ruleset")


def test_a_condition_is_one_word(target):
    """A text among iptables' conditions is its one argument to the byte, or an error and no rule at all."""
    before = target.state()
    accepted = []

    def read_back(text):
        rules = target.host.run("iptables-save", "-t", "nat").split("\n")
        (rule,) = [line for line in rules if line.startswith("-A CNI-HOSTPORT-DNAT ")]
        _, own = COMMENT.findall(rule)
        assert re.sub(r"\\(.)", r"\1", own.removeprefix('"').removesuffix('"')) == text[:255]  # the kernel's limit
        accepted.append(text)

    for text in TEXTS:
        words = ["-s", "10.0.0.0/8", "-m", "comment", "--comment", text]
        target.run("portmap", "conditionsV4", words, between=partial(read_back, text))
    assert {'"', "'", "\\", 'x" -j ACCEPT', "$(id)", "-x", " ", "é"} <= set(accepted)
    assert target.state() == before


@pytest.mark.needs("iptables_nft_nat")
def test_an_administrators_chain_is_one_word(target, texts):
    """The name of a chain is to the byte the one that iptables has then, or an error and nothing at all."""
    target.configs["firewall"]["backend"] = "iptables"

    def there(name):
        saved = target.host.run("iptables-save")
        assert f"\n:{name or 'CNI-ADMIN'} " in saved
        with target.host.entered():
            output("iptables-restore", "--test", stdin=saved)

    for text in texts:
        before = target.state()
        if not target.run("firewall", "iptablesAdminChainName", text, between=partial(there, text)):
            assert target.state() == before, text  # an administrator's chain stays otherwise


def test_a_line_that_is_too_long_is_no_second_line(target):
    """Words behind 10 KB of others, where iptables-restore begins a new line, are refused."""
    before = target.state()
    for count in (40, 60, 85, 120, 3000):
        words = ["-s", "10.0.0.0/8", *["x" * (10_300 // count)] * count, "-A INPUT -j DROP"]
        assert not target.run("portmap", "conditionsV4", words)
    for empty in ([""] * 3500, ["-s", "10.0.0.0/8", *[""] * 3500]):
        assert not target.run("portmap", "conditionsV4", empty)
    assert target.state() == before


def test_a_long_container_id_is_found_again(target):
    """Of a container whose ID is longer than a page the address is released, by DEL and by GC."""
    for number, container_id in enumerate(("x" * 5000, "x" * 60_000, "x" * 120_000)):
        for command in ("DEL", "GC"):
            keys = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": []}
            config = {**target.configs["host-local"], "name": f"n{number}", **keys}
            how = {"host": target.host, "container_id": container_id, "netns": target.sandbox}
            first = run_plugin("host-local", "ADD", config, **how).result()
            run_plugin("host-local", "CHECK", config, **how).assert_silent()
            assert run_plugin("host-local", "ADD", config, **how).status == 1, first  # it has one
            how["container_id"] = container_id if command == "DEL" else None
            run_plugin("host-local", command, config, **how).assert_silent()
            assert list(target.store.glob(f"n{number}/10*")) == []
