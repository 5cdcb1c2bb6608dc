"""`podwire ipam pools --set`, `reclaim` and `recover` change the store through the agent, after a confirmation."""

import re

import pytest

from agent.pools.block_protocol import MISSING, SwapOutcome
from agent.pools.store import SwapReply
from tests.support.admin_world import DEFAULT, EPOCH, ONE, THREE, TWO, healthy
from tests.support.pools_tool import printed, serving
from tests.support.store_double import Fault

MORE = {"name": "more", "cidrs": ["10.23.0.0/24"]}
POWERED_OFF = re.compile(r"podwire ipam reclaim --node \S+ --powered-off(?: --record \w+)?")


@pytest.fixture
def tool(bin_dir, host, tmp_path):
    """The tool on node worker-1 of a healthy cluster of two nodes."""
    with serving(host, tmp_path / "node", healthy()) as tool:
        yield tool


@pytest.fixture
def store(tool):
    return tool.world.store


def test_pools_are_changed_after_a_confirmation(tool, store):
    """The difference is printed, and the pools are changed after "yes"."""
    path = tool.write_pools({**DEFAULT, "excluded": ["10.22.0.0/30"]}, MORE)
    done = tool.run("pools", "--set", path, stdin="yes\n")
    assert done.status == 0, done
    assert '~ pool default: excluded: [] -> ["10.22.0.0/30"]' in done.stdout
    assert "+ pool more:" in done.stdout
    assert "[yes/no]" in done.stderr
    assert [pool.name for pool in store.read_space().value.pools] == ["default", "more"]
    assert "nothing to change" in tool.text("pools", "--set", path)


def test_pools_replace_an_object_that_is_refused(tool, store, monkeypatch):
    """An IPSpace whose pools are refused is named, and replaced, also if the pools in effect are those of the file."""
    read = store.read_space
    refusal = "IPSpace default: the pools are refused: unknown key 'exclude'"
    monkeypatch.setattr(store, "read_space", lambda: read()._replace(problem=refusal))
    written = []

    def swap_space(_, new):
        written.append(new)
        return SwapReply(SwapOutcome.SUCCEEDED)

    monkeypatch.setattr(store, "swap_space", swap_space)
    text = tool.text("pools", "--set", tool.write_pools(DEFAULT), "--yes")
    assert f"{refusal}; its spec is replaced" in text
    assert written == [read().value]


@pytest.mark.parametrize("answer", ["no\n", "", "y\n", "yes please\n"])
def test_pools_stay_without_a_confirmation(tool, store, answer):
    """Any answer but "yes", and the end of the input, change nothing; the printed command needs no question."""
    before = dict(store.objects)
    text = tool.text("pools", "--set", tool.write_pools(DEFAULT, MORE), stdin=answer, status=3)
    assert "nothing was changed" in text
    assert store.objects == before
    command = printed(r"podwire ipam pools --set \S+ --yes", text)
    assert tool.run_printed(command).status == 0
    assert store.read_space().value.pool("more")


def test_pools_with_json(tool, store):
    """With --json nothing is asked: --yes is needed, and the document has both spaces and the difference."""
    path = tool.write_pools(DEFAULT, MORE)
    assert "confirm with --yes" in tool.json("pools", "--set", path, status=2)["details"]
    document = tool.json("pools", "--set", path, "--yes")
    assert len(document["before"]["pools"]) == 1
    assert len(document["after"]["pools"]) == 2
    assert len(document["difference"]) == 1


def test_pools_that_lose_blocks_are_refused(tool, store):
    """A pool that is removed while nodes have blocks is refused; the steps of the message lead to the end."""
    text = tool.text("pools", "--set", tool.write_pools(MORE), "--yes", status=3)
    assert "loses block 10.22.0.0/26" in text
    assert '"draining" first' in text
    tool.text("pools", "--set", tool.write_pools({**DEFAULT, "draining": ["10.22.0.0/24"]}, MORE), "--yes")
    assert "2 draining" in tool.text("pools")
    assert "draining" in tool.text("blocks", "--pool", "default")
    tool.world.claim("", "10.22.0.0/26", "10.22.0.64/26")  # their agents give them back
    assert "no blocks are claimed" in tool.text("blocks", "--pool", "default")
    tool.text("pools", "--set", tool.write_pools(MORE), "--yes")
    assert [pool.name for pool in store.read_space().value.pools] == ["more"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is not JSON"),
        ("[]", 'has no list "pools"'),
        ('{"pools": {}}', 'has no list "pools"'),
        ('{"pools": [], "epoch": "e9"}', "unknown key 'epoch'"),
        ('{"pools": [{"name": "default"}]}', 'has no "cidrs"'),
        ('{"pools": [1]}', '"pools" is not a list of objects'),
    ],
)
def test_files_of_pools_that_are_not_valid(tool, store, content, text):
    """A file that is not valid is refused with the reason, and changes nothing."""
    before = dict(store.objects)
    path = tool.directory / "pools.json"
    path.write_text(content)
    assert text in tool.text("pools", "--set", str(path), "--yes", status=3)
    assert "cannot read" in tool.text("pools", "--set", "/nonexistent", "--yes", status=3)
    assert store.objects == before


def test_reclaim_prints_its_effect_and_changes_nothing(tool, store):
    """Without --powered-off the plan, the meaning of the statement and the next command are printed."""
    before = dict(store.objects)
    text = tool.text("reclaim", "--node", "worker-2")
    assert f"node worker-2 ({TWO}): registered, 1 block" in text
    assert "other nodes will get these blocks: 10.22.0.64/26" in text
    assert "two pods may get the same address" in text
    assert tool.json("reclaim", "--node", "worker-2")["blocks"] == ["10.22.0.64/26"]
    assert store.objects == before
    command = printed(POWERED_OFF, text)
    assert tool.run_printed(command, stdin="worker-2\n").status == 0
    assert tool.world.owners()["10.22.0.64/26"] == ""


def test_reclaim_needs_the_name_of_the_node(tool, store):
    """Another word than the node's name changes nothing; the printed command with the record needs no question."""
    before = dict(store.objects)
    for answer in ("yes\n", "worker-1\n", ""):
        text = tool.text("reclaim", "--node", "worker-2", "--powered-off", stdin=answer, status=3)
    assert store.objects == before
    command = printed(POWERED_OFF, text)
    assert "--record" in command
    done = tool.run_printed(command)
    assert (done.status, "declared dead; 1 block free 10.22.0.64/26" in done.stdout) == (0, True), done


def test_reclaim_of_a_node_that_has_booted_meanwhile_is_refused(tool, store):
    """The record that was printed before a boot is refused, and the node keeps its blocks."""
    text = tool.text("reclaim", "--node", "worker-2", "--powered-off", status=3)
    stored = store.read_entry(TWO)
    store.swap_entry(TWO, stored, stored.value._replace(record=stored.value.record._replace(instance="boot-9/")))
    refused = tool.run_printed(printed(POWERED_OFF, text))
    assert refused.status == 3
    assert "no longer the one that you have seen" in refused.stderr
    assert tool.world.owners()["10.22.0.64/26"] == TWO
    command = printed(r"podwire ipam reclaim --node \w+", refused.stderr)
    assert tool.run_printed(command).status == 0


def test_reclaim_of_this_node_and_of_unknown_nodes_is_refused(tool, store):
    """The node of the command, a node that does not exist, and a program without the record are refused."""
    before = dict(store.objects)
    assert "is this node, which is running" in tool.text("reclaim", "--node", "worker-1", status=3)
    assert "has no node worker-9" in tool.text("reclaim", "--node", "worker-9", status=3)
    assert "--record" in tool.json("reclaim", "--node", "worker-2", "--powered-off", status=2)["details"]
    assert store.objects == before


def test_reclaim_of_a_node_without_an_entry(tool, store):
    """The blocks of a node whose entry was deleted are freed by its ID, which the plan prints."""
    tool.world.claim(THREE, "10.22.0.128/26")
    text = tool.text("reclaim", "--node", THREE)
    assert "no entry, 1 block" in text
    assert tool.run_printed(printed(POWERED_OFF, text), stdin=f"{THREE}\n").status == 0
    assert tool.world.owners()["10.22.0.128/26"] == ""


def test_reclaim_that_was_interrupted_goes_on(tool, store):
    """Blocks that are not free yet are reported with status 1 or 3; the same command frees them later."""
    tool.world.claim(TWO, "10.22.0.128/26")
    record = tool.json("reclaim", "--node", "worker-2")["record"]
    words = ("reclaim", "--node", "worker-2", "--powered-off", "--record", record)
    store.fail_next(Fault.NOT_EXECUTED, "swap_block", times=100)
    assert "not free yet" in tool.text(*words, status=3)
    store._faults.clear()
    assert tool.json(*words)["problem"] == ""
    assert set(tool.world.owners().values()) == {ONE, ""}


def test_recover_begins_an_epoch(tool, store):
    """After a restore a new epoch begins, and the nodes that joined are waited for."""
    tool.world.report = tool.world.report._replace(is_restored=True)
    done = tool.run("recover", "--joined", THREE, stdin="yes\n")
    assert done.status == 0, done
    assert "no other agent may reach the store" in done.stdout
    assert "has 2 nodes: worker-1 worker-2" in done.stdout
    epoch = store.read_space().value.epoch
    assert epoch != EPOCH
    assert f"epoch {epoch} has begun" in done.stdout
    assert store.read_entry(THREE).value.record == MISSING
    command = printed(r"podwire ipam verify --cluster", done.stdout)
    assert tool.run_printed(command).status == 1  # all nodes are waited for
    assert "3 nodes of another epoch: no blocks are claimed now" in tool.text("pools")


def test_recover_changes_nothing_without_restore_or_confirmation(tool, store):
    """Without a restore, without "yes", with a name instead of an ID, and with --json without --yes nothing changes."""
    before = dict(store.objects)
    assert "has not noticed a restore" in tool.text("recover", "--yes", status=3)
    tool.world.report = tool.world.report._replace(is_restored=True)
    text = tool.text("recover", "--joined", THREE, stdin="no\n", status=3)
    assert "confirm" in str(tool.json("recover", status=2))
    assert "32 hexadecimal digits" in tool.text("recover", "--joined", "worker-3", "--yes", status=3)
    assert store.objects == before
    command = printed(r"podwire ipam recover --yes --joined \w+", text)
    assert tool.run_printed(command).status == 0
    assert store.read_space().value.epoch != EPOCH
