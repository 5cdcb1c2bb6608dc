"""The record of a pod, and ADD's wait for podwire-agent (attachment.policy), in a directory of the test."""

import json
import socket
import time
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attachment.policy import gate, records, table
from attachment.policy.records import PodRecord
from cni.errors import CniError
from kernel.boot import get_boot_id
from kernel.netfilter import nft_rule
from tests.support import policy_node
from tests.support.errors import failure_of
from tests.support.policy_node import agent, write_namespaces

WAIT_S = 0.2
ADDRESSES = (IPv4Address("10.22.0.2"), IPv6Address("fd00:22::2"))
POD = PodRecord(
    boot=get_boot_id(),
    namespace="shop",
    pod="web-0",
    uid="1-2",
    network="net",
    container_id="cid",
    ifname="eth0",
    host_veth="veth01234567",
    mac="02:00:00:00:00:01",
    addresses=ADDRESSES,
    guard="bridge",
)


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """A directory of policies; ADD asks often."""
    for name in ("PODS_DIRECTORY", "NAMESPACES_FILE", "GATE_SOCKET", "DIRECTORY"):
        monkeypatch.setattr(table, name, getattr(table, name).replace(table.DIRECTORY, str(tmp_path)))
    monkeypatch.setattr(policy_node, "DIRECTORY", tmp_path)
    monkeypatch.setattr(gate, "_RETRY_S", WAIT_S / 4)
    return tmp_path


def wait_error():
    """Waits in vain; returns the end of the message, and the time that it took."""
    start = time.monotonic()
    with pytest.raises(CniError) as caught, mock.patch.object(gate, "_WAIT_S", WAIT_S):
        gate.wait(POD)
    assert caught.value.code == 11
    assert '"shop"' in caught.value.msg
    return caught.value.msg.rpartition(": ")[2], time.monotonic() - start


def test_record_is_read_as_it_was_written(directory):
    """A record that is written is read again; its name depends on network, container and interface only."""
    records.write(POD)
    assert records.read(POD.file_name) == POD
    assert records.list_file_names() == [POD.file_name] == [records.file_name_of("net", "cid", "eth0")]
    assert len({records.file_name_of(*names) for names in (("net", "cid", "eth0"), ("net", "cid", "eth1"))}) == 2
    assert sorted(path.name for path in (directory / "pods").iterdir()) == [POD.file_name]


@given(
    st.binary(max_size=100) | st.from_type(dict[str, int | list[int] | str]).map(lambda one: json.dumps(one).encode())
)
def test_any_bytes_are_a_record_or_refused(data):
    """Any file is a record, or refused with ValueError."""
    with suppress(ValueError):
        assert isinstance(records.parse(data, POD.file_name), PodRecord)


def test_delete_keeps_the_record_if_the_release_fails():
    """A record is deleted after the release, and stays if that fails; without a record nothing is released."""
    records.write(POD)
    released = []

    def fail(pod):
        raise CniError(999, "no")

    assert failure_of(lambda: records.delete(POD.file_name, fail), CniError)
    assert records.read(POD.file_name) == POD
    records.delete(POD.file_name, lambda pod: released.append((pod, records.list_file_names())))
    assert released == [(POD, [POD.file_name])]
    records.delete(POD.file_name, fail)
    assert records.list_file_names() == []


def test_draft_of_a_killed_add_is_deleted():
    """The draft that a killed ADD leaves is no record, and can be deleted."""
    records.write(POD)
    Path(records.path_of(f".{POD.file_name}")).write_text("{")
    assert records.list_file_names() == [POD.file_name]
    for _ in range(2):
        records.delete_draft(POD.file_name)
    assert not Path(records.path_of(f".{POD.file_name}")).exists()


def test_pod_of_another_namespace_does_not_wait():
    """A pod of a namespace that is not listed does not ask the agent."""
    write_namespaces("other")
    with agent(lambda request: None) as requests:
        gate.wait(POD)
    assert requests == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"boot": 5}', '{"namespaces": {}}', '{"boot": "BOOT", "strict": 1}'])
def test_file_that_is_no_list_counts_as_none(directory, text):
    """A file that cannot be read as a list keeps the pod waiting."""
    (directory / "namespaces").write_text(text.replace("BOOT", POD.boot))
    assert gate.read_namespaces(POD.boot) is None


def test_copy_is_no_record(directory):
    """A copy of a record under another name is not the record of a pod, so GC and the agent leave it alone."""
    records.write(POD)
    (directory / "pods" / "copy").write_bytes((directory / "pods" / POD.file_name).read_bytes())
    with pytest.raises(ValueError, match="another attachment"):
        records.read("copy")


@pytest.mark.parametrize(
    ("policies", "parsed"),
    [
        (("a", "b"), (("a", "b"), True)),
        ((), ((), True)),
        (("a" * 60, "b" * 60), (("a" * 60,), False)),
        (("a" * 200,), (("a" * 111,), False)),
    ],
)
def test_cut_comment(policies, parsed):
    """Of a comment that the kernel has cut, the complete names are parsed, or the part of the only one."""
    comment = table.ChainSubject("ingress", "shop", policies).comment()[: nft_rule.COMMENT_MAX]
    subject, is_complete = table.ChainSubject.parse(comment)
    assert (subject[:2], (subject.policies, is_complete)) == (("ingress", "shop"), parsed)


def test_absent_agent(directory):
    """Without a socket the message says that the agent does not run, at the end of the time."""
    write_namespaces("shop")
    problem, elapsed_s = wait_error()
    assert problem == "it does not run"
    assert WAIT_S <= elapsed_s < WAIT_S + 1


def test_killed_agent(directory):
    """The socket of a killed agent counts as none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(table.GATE_SOCKET)
    assert wait_error()[0] == "it does not run"


@pytest.mark.parametrize(
    "reply", [b"", b"{}\n", b"[]\n", b'{"generation": "7"}\n', b'{"generation": 7}', b"\xff" * 9000]
)
def test_nonsense_is_no_answer(reply):
    """A closed connection, and an answer in another form, do not count."""
    write_namespaces("shop", generation=7)
    with agent(lambda request: reply):
        assert wait_error()[0] == "it does not answer"


def test_silent_agent():
    """An agent that accepts and does not answer is waited for until the end of the time, and no longer."""
    write_namespaces("shop")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(table.GATE_SOCKET)
        listener.listen(1)
        problem, elapsed_s = wait_error()
    assert problem == "it does not answer"
    assert WAIT_S <= elapsed_s < WAIT_S + 1


def test_older_list_does_not_count():
    """An answer of an older generation does not count, however often it comes; the agent is not asked in a loop."""
    write_namespaces("shop", generation=7)
    with agent(lambda request: {"generation": 6}) as requests:
        assert wait_error()[0] == "it has an older list of namespaces"
    assert 3 <= len(requests) <= 5


@pytest.mark.parametrize("last", [7, 8])
def test_current_or_newer_list_counts(last):
    """ADD asks again until an answer has the generation that it has read, or a newer one."""
    write_namespaces("shop", generation=7)
    generations = iter([6, last])
    with agent(lambda request: {"generation": next(generations)}) as requests:
        gate.wait(POD)
    assert len(requests) == 2
