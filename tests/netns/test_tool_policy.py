"""`podwire policy` prints what an agent knows of network policies, over its Unix socket."""

import json
import re
import subprocess
import threading

import pytest

from agent import http_server
from agent.policy.objects import EGRESS, INGRESS
from tests.support import binaries
from tests.support.node import Done
from tests.support.policy_admin import PolicyAgent, serving, shop
from tests.support.processes import PATH

DENY = "policies db, default-deny of namespace shop isolate it (ingress): no policy allows tcp 80 from web-0"


@pytest.fixture
def path(bin_dir, tmp_path):
    """The path of the agent's socket."""
    return str(tmp_path / "agent.sock")


@pytest.fixture
def agent(host, path):
    """The agent of namespace shop, which listens, on a node with the address 127.0.0.1."""
    agent = shop()
    host.ip("link", "set", "lo", "up")
    with host.entered(), serving(agent, path):
        yield agent


def policy(path, *words):
    """Runs `podwire policy`; a traceback fails the test."""
    line = [str(binaries.directory() / "podwire"), "policy", words[0], f"--socket={path}", *words[1:]]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, env={"PATH": PATH})
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def why(path, *words):
    """Returns the exit status and the document of `podwire policy why`."""
    done = policy(path, "why", *words, "--json")
    return done.status, json.loads(done.stdout)


def test_a_connection_is_explained_at_both_ends(agent, path):
    """An allowed connection names policy and rule, a denied one the policies that isolate; for each IP version."""
    done = policy(path, "why", "shop/web-0", "shop/db-0:5432")
    assert done.status == 0, done
    assert "allowed: tcp 5432 from shop/web-0 (10.0.0.1) to shop/db-0 (10.0.0.2)" in done.stdout
    assert "allowed: tcp 5432 from shop/web-0 (fd00:1::1) to shop/db-0 (fd00:1::2)" in done.stdout
    assert "  egress: no policy isolates web-0 (egress)" in done.stdout
    assert "  ingress: policy db of namespace shop allows it (ingress, rule 1)" in done.stdout
    done = policy(path, "why", "shop/web-0", "shop/db-0:80")
    assert done.status == 1, done
    assert f"  ingress: {DENY}" in done.stdout
    assert done.stdout.count("denied: tcp 80") == 2


@pytest.mark.parametrize(
    ("source", "destination", "allowed", "reason"),
    [
        ("shop/web-0", "shop/db-0:5432/udp", False, "no policy allows udp 5432 from web-0"),
        ("shop/web-0", "shop/db-0", False, "no policy allows icmp from web-0"),
        ("10.0.0.1", "10.0.0.2:5432", True, "policy db of namespace shop allows it"),
        ("fd00:1::1", "[fd00:1::2]:5432", True, "policy db of namespace shop allows it"),
        ("shop/far-0", "shop/db-0:5432", False, "no policy allows tcp 5432 from far-0"),
        ("203.0.113.9", "shop/web-0:80", False, "no policy allows tcp 80 from 203.0.113.9"),
        ("shop/web-0", "203.0.113.9:80", True, "203.0.113.9 is not the address of a pod that policies can select"),
        ("shop/web-0", "shop/web-0:80", True, "a pod always reaches itself"),
        ("127.0.0.1", "shop/web-0:80", True, "its node"),
        ("shop/web-0", "shop/new-0:80", False, "has no object of pod new-0 yet"),
        ("shop/web-0", "shop/old-0:80", True, "policies do not apply to old-0: it has no record"),
        ("shop/web-0", "shop/typo-0:80", False, "a rule has the port htttp, which no container of this pod has"),
        ("203.0.113.9", "shop/far-0:80", False, "from 203.0.113.9; if it is an address of node n2, it is allowed"),
    ],
)
def test_ends_and_protocols(agent, path, source, destination, allowed, reason):
    """An end is a pod of any node or an address; without a port it is a ping; the node and the pod itself pass."""
    agent.record("shop", "new-0", ["10.0.0.9"])
    agent.pod("shop", "old-0", "10.0.0.8", recorded=False)
    agent.pod("shop", "typo-0", "10.0.0.7")
    agent.policy(
        "shop", "typo", podSelector={"matchLabels": {"app": "typo-0"}}, ingress=[{"ports": [{"port": "htttp"}]}]
    )
    status, document = why(path, source, destination)
    assert (status, {one["allowed"] for one in document["connections"]}) == (0 if allowed else 1, {allowed})
    assert reason in document["connections"][0]["ingress"]["reason"]


def test_allowed_without_enforcement_is_incomplete(agent, path):
    """While something keeps the agent from enforcing policies, "allowed" ends with status 4, and names the cause."""
    agent.problem = "table cali of another program"
    done = policy(path, "why", "shop/web-0", "shop/db-0:5432")
    assert (done.status, "table cali of another program" in done.stdout) == (4, True)
    assert why(path, "shop/web-0", "shop/db-0:80")[0] == 1
    done = policy(path, "list")
    assert (done.status, "table cali of another program" in done.stdout) == (1, True)


def test_list_has_policies_and_pods(agent, path):
    """The list has each policy with directions, number of pods here and drops, and the pods with their policies."""
    agent.policy("shop", "out", podSelector={"matchLabels": {"app": "none"}}, egress=[], policyTypes=["Egress"])
    table, _ = agent.plan.update()
    agent.drops = {name: 7 for name, chain in table.chains.items() if chain.subject.policies == ("db", "default-deny")}
    done = policy(path, "list")
    assert done.status == 0, done
    for row in ("shop +db +ingress +1 +7", "shop +default-deny +ingress +2 +7", "shop +out +egress +0 +0"):
        assert re.search(row, done.stdout), done.stdout
    assert re.search("shop/db-0 +10.0.0.2 fd00:1::2 +db default-deny", done.stdout), done.stdout
    document = json.loads(policy(path, "list", "--json").stdout)
    directions = {one["name"]: one["directions"] for one in document["policies"]}
    assert directions == {"db": [INGRESS], "default-deny": [INGRESS], "out": [EGRESS]}


def test_only_the_main_thread_reads(agent, path):
    """Questions of the HTTP server's threads are answered by one thread, the loop's."""
    runs = [threading.Thread(target=policy, args=(path, "list")) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert len(agent.threads) == 1


def test_errors_name_object_and_fix(agent, path, tmp_path):
    """Unknown pods, wrong words, and an agent that does not answer are errors with their own status."""
    done = policy(path, "why", "shop/lost-0", "shop/db-0:80")
    assert (done.status, "no pod lost-0 of namespace shop" in done.stderr) == (3, True), done
    assert "kubectl --namespace shop get pod lost-0" in done.stderr
    done = policy(path, "why", "10.0.0.1", "[fd00:1::2]:80")
    assert (done.status, "no addresses of one IP version" in done.stderr) == (3, True), done
    for words in (
        ("shop/web-0", "db-0:80"),
        ("web-0", "shop/db-0:80"),
        ("shop/web-0", "shop/db-0:99999"),
        ("shop/web-0", ":80"),
        ("shop/web-0", "shop/db-0:80/x"),
    ):
        done = policy(path, "why", *words)
        assert (done.status, "examples: shop/db-0:5432" in done.stderr) == (2, True), done
    done = policy(str(tmp_path / "none"), "list")
    assert (done.status, "does not exist" in done.stderr, "podwire-agent" in done.stderr) == (3, True, True), done


def test_an_agent_without_policies(path):
    """An agent without --network-policy is an error that names the option."""
    server = http_server.start(path, {}, {})
    try:
        for words in (("list",), ("why", "shop/web-0", "shop/db-0:80")):
            done = policy(path, *words)
            assert (done.status, "--network-policy" in done.stderr) == (3, True), done
    finally:
        server.shutdown()
        server.socket.close()


def test_no_answer_of_the_main_thread_is_an_error(path, monkeypatch):
    """A main thread that is busy is an error after a limit, not an empty answer."""
    monkeypatch.setattr("agent.policy.admin._LIMIT_S", 0.1)
    agent = PolicyAgent()  # its loop does not run
    server = http_server.start(path, agent.admin.pages(), agent.admin.actions())
    try:
        done = policy(path, "list")
        assert (done.status, "has been busy" in done.stderr) == (3, True), done
    finally:
        server.shutdown()
        server.socket.close()
