"""The store in etcd beyond the contract: users, certificates, a full store, and a cluster whose leader stops."""

import socket
import time
import urllib.error
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from agent.api_errors import (
    ApiError,
    Expired,
    Forbidden,
    InvalidAnswer,
    NoCredentials,
    NotFound,
    Unauthorized,
    Untrusted,
)
from agent.pools.block_protocol import FREE, BlockRecord, NodeRecord, SwapOutcome, Token
from agent.pools.etcd import EtcdStore, etcd_store
from agent.pools.etcd_client import EtcdClient, User
from agent.pools.store import BlockNote, EntryChanged, NodeEntry, Stored
from tests.cluster.conftest import new_etcd
from tests.support import certificates, etcd
from tests.support.cutting_proxy import CuttingProxy, Mode
from tests.support.etcd import Etcd
from tests.support.kubernetes_double import Fault, KubernetesDouble
from tests.support.machine import eventually

BLOCK = ip_network("10.22.0.64/26")
NODE = "a" * 32
OWNED = BlockRecord(NODE, Token("epoch-1", 1))
NOTE = BlockNote("default")
PASSWORD = "correct horse"
PROGRAMS = {"etcd-3.4": etcd.debian_etcd, "etcd-3.5": etcd.pypi_etcd}


@pytest.fixture(params=["etcd-3.5", pytest.param("etcd-3.4", marks=pytest.mark.long)])
def new_members(request, tmp_path_factory) -> Callable[..., Etcd]:
    """A function that returns members of their own, of both versions, which do not run."""
    return lambda **options: new_etcd(PROGRAMS[request.param](), tmp_path_factory, **options)


@pytest.fixture
def member(new_members) -> Iterator[Etcd]:
    """A running member."""
    with new_members().running() as running:
        yield running


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    """A file with the password."""
    path = tmp_path / "password"
    path.write_text(PASSWORD + "\n")
    return path


def claim(store: EtcdStore, block: BlockRecord = OWNED) -> SwapOutcome:
    return store.swap_block(BLOCK, store.read_block(BLOCK), block, NOTE).outcome


def test_a_user_has_a_password(member, password_file):
    """With users, etcd needs the user and the password; a wrong one, or none, is an error that names the file."""
    member.enable_users(PASSWORD)
    url = member.urls[0]
    store = etcd_store([url], user="agent", password_file=password_file)
    assert claim(store) is SwapOutcome.SUCCEEDED
    store.watch(store.list_entries().revision).close()
    with pytest.raises(ApiError, match=r"user name is empty .*; fix: set a user and a password file"):
        etcd_store([url]).read_block(BLOCK)
    password_file.write_text("wrong")
    store = etcd_store([url], user="agent", password_file=password_file)
    with pytest.raises(Unauthorized, match=f"invalid user ID or password .*; fix: .*{password_file}"):
        store.read_block(BLOCK)
    change = store.swap_block(BLOCK, Stored(FREE), OWNED, NOTE)
    assert change.outcome is SwapOutcome.LOST
    password_file.write_text(PASSWORD)
    assert store.read_block(BLOCK).value == OWNED


def test_a_password_file_that_cannot_be_read(member, tmp_path):
    """Without the file no request is sent."""
    store = etcd_store(member.urls, user="agent", password_file=tmp_path / "none")
    with pytest.raises(NoCredentials, match=f"the file {tmp_path}/none cannot be used"):
        store.read_block(BLOCK)


def test_a_token_is_renewed(member, password_file):
    """After a token has expired, here by a member that starts again, reads, changes and watches get a new one."""
    member.enable_users(PASSWORD)
    store = etcd_store(member.urls, user="agent", password_file=password_file)
    before = store.read_block(BLOCK)
    for _ in range(2):
        member.restart()
        change = store.swap_block(BLOCK, before, OWNED, NOTE)
        assert change.outcome in (SwapOutcome.SUCCEEDED, SwapOutcome.LOST)
    assert store.read_block(BLOCK).value == OWNED
    revision = store.list_entries().revision
    member.restart()
    watch = store.watch(revision)
    store.swap_entry(NODE, Stored(None), NodeEntry(NodeRecord("m", "i", "e")))
    event = next(iter(watch))
    assert isinstance(event, EntryChanged)
    assert event.node == NODE
    watch.close()


def test_a_user_before_etcd_has_users(member, password_file):
    """A user that is set before etcd's authentication is enabled does no harm, and counts from then on."""
    store = etcd_store(member.urls, user="agent", password_file=password_file)
    assert claim(store) is SwapOutcome.SUCCEEDED
    member.enable_users(PASSWORD)
    with pytest.raises(ApiError, match="user name is empty"):
        etcd_store(member.urls).read_block(BLOCK)
    assert store.read_block(BLOCK).value == OWNED


def test_a_user_without_the_right(member, password_file):
    """A key that the user's role does not have is refused with the fix, for reads, changes and watches."""
    member.enable_users(PASSWORD)
    client = EtcdClient(member.urls, user=User("agent", password_file))
    store = EtcdStore(client, "default")
    store._prefix = "/other/"
    for attempt in (lambda: store.read_block(BLOCK), store.list_blocks, lambda: store.watch("1")):
        with pytest.raises(Forbidden, match=r"permission denied .*; fix: grant the user's role"):
            attempt()
    change = store.swap_block(BLOCK, Stored(FREE), OWNED, NOTE)
    assert change.outcome is SwapOutcome.LOST
    assert "permission denied" in change.problem


def test_certificates(new_members, tls, tmp_path):
    """Both sides have certificates; without one, or with another authority, nothing is sent."""
    with new_members(tls=tls).running() as member:
        files = {"ca": tls / "ca.crt", "cert": tls / "server.crt", "key": tls / "server.key"}
        store = etcd_store(member.urls, **files)
        assert claim(store) is SwapOutcome.SUCCEEDED
        other = certificates.create(tmp_path)
        with pytest.raises(Untrusted, match=f"is not trusted: .* not that of {other}/ca.crt"):
            etcd_store(member.urls, **{**files, "ca": other / "ca.crt"}).read_block(BLOCK)
        for wrong in ({"cert": other / "server.crt", "key": other / "server.key"}, {"cert": None, "key": None}):
            with pytest.raises(ApiError, match=r"the connection to .* was cut|alert"):
                etcd_store(member.urls, **{**files, **wrong}).read_block(BLOCK)
        with pytest.raises(NoCredentials, match="cannot be used"):
            etcd_store(member.urls, **{**files, "key": other / "server.key"}).read_block(BLOCK)
        with pytest.raises(NoCredentials, match=f"{tmp_path}/none cannot be used"):
            etcd_store(member.urls, **{**files, "key": tmp_path / "none"}).read_block(BLOCK)


def test_endpoints_that_cannot_be_used():
    """An endpoint that is no URL, or TLS without an authority, is refused before any request."""
    for options, text in (
        ({"endpoints": []}, "no endpoint"),
        ({"endpoints": ["127.0.0.1:2379"]}, "is not an endpoint of etcd; write https://HOST:PORT"),
        ({"endpoints": ["https://127.0.0.1:2379"]}, "needs the certificate authority"),
    ):
        with pytest.raises(ValueError, match=text):
            etcd_store(**options)


def fill(member: Etcd) -> int:
    """Writes keys /other/0, /other/1, ... until etcd refuses one; returns their number."""
    for number in range(100):
        try:
            member.put(f"/other/{number}", bytes(100_000))
        except urllib.error.HTTPError:
            return number
    raise AssertionError("etcd has no quota")


def test_a_full_store(new_members):
    """A change of a store above its quota is LOST, with the fix; reads work on, and so does it after the fix."""
    with new_members(options=["--quota-backend-bytes=1000000"]).running() as member:
        store = etcd_store(member.urls)
        assert claim(store) is SwapOutcome.SUCCEEDED
        number = fill(member)
        change = store.swap_entry(NODE, Stored(None), NodeEntry(NodeRecord("m", "i", "e")))
        assert change.outcome is SwapOutcome.LOST
        assert "space exceeded" in change.problem
        assert "then `etcdctl alarm disarm`" in change.problem
        assert store.read_block(BLOCK).value == OWNED
        assert not store.list_entries().by_node
        for entry in range(number):
            member.put(f"/other/{entry}", None)
        member.compact()
        member.call("maintenance/defragment", {})
        for alarm in member.call("maintenance/alarm", {})["alarms"]:
            member.call("maintenance/alarm", {"action": "DEACTIVATE", **alarm})
        assert claim(store, BlockRecord("", Token("epoch-1", 1))) is SwapOutcome.SUCCEEDED


def test_a_restored_store_refuses_what_was_read_before(member):
    """A restored store counts its revisions again: an equal revision with another value refuses a stale change."""
    store = etcd_store(member.urls)
    member.backup("copy")
    assert claim(store) is SwapOutcome.SUCCEEDED
    before = store.read_block(BLOCK)
    store.list_entries()
    position = store.position
    member.restore("copy")
    assert claim(store, BlockRecord("b" * 32, Token("epoch-1", 1))) is SwapOutcome.SUCCEEDED
    entries = store.list_entries()
    assert store.position == position  # nothing but the value shows the restore
    assert store.swap_block(BLOCK, before, BlockRecord(NODE, Token("epoch-1", 2)), NOTE).outcome is SwapOutcome.LOST
    store.watch(entries.revision).close()
    member.restore("copy")
    with pytest.raises(Expired):
        store.watch(entries.revision)


def test_three_members_and_a_stopped_leader(new_members):
    """A change whose member stops is UNKNOWN after three seconds; the next requests go to the other members."""
    with new_members(size=3).running() as cluster:
        leader = cluster.leader()
        urls = [cluster.urls[leader], *(url for url in cluster.urls if url != cluster.urls[leader])]
        before = etcd_store(urls).read_block(BLOCK)
        cluster.pause(leader)
        store = etcd_store(urls)  # a new one: on a slow machine the first may already use another member
        started = time.monotonic()
        change = store.swap_block(BLOCK, before, OWNED, NOTE)
        assert change.outcome is SwapOutcome.UNKNOWN
        assert "has sent no answer in time" in change.problem
        assert 2.5 < time.monotonic() - started < 30
        assert eventually(lambda: claim(store) is SwapOutcome.SUCCEEDED, within_s=60)
        cluster.resume(leader)
        store = etcd_store([urls[0]])
        assert store.read_block(BLOCK).value == OWNED


def test_a_watch_ends_without_a_leader(tmp_path_factory):
    """A member that has lost the others ends its watches within seconds, and a read of it is an error."""
    with new_etcd(etcd.pypi_etcd(), tmp_path_factory, size=3).running() as cluster:
        store = etcd_store([cluster.urls[0]])
        watch = store.watch(store.list_entries().revision)
        for number in (1, 2):
            cluster.pause(number)
        started = time.monotonic()
        assert list(watch) == []
        assert time.monotonic() - started < 100
        with pytest.raises(ApiError):
            store.list_entries()


def test_the_next_endpoint(member):
    """A refused connection, and for reads also a silent endpoint, is followed by the next endpoint; a change is not."""
    with socket.socket() as closed, CuttingProxy(member.urls[0]).running() as proxy:
        closed.bind(("127.0.0.1", 0))
        refusing = f"http://127.0.0.1:{closed.getsockname()[1]}"
        store = etcd_store([refusing, member.urls[0]])
        assert claim(store) is SwapOutcome.SUCCEEDED
        proxy.mode = Mode.STALL
        store = EtcdStore(EtcdClient([proxy.url, refusing, member.urls[0]], timeout_s=0.3), "default")
        before = etcd_store(member.urls).read_block(BLOCK)
        change = store.swap_block(BLOCK, before, BlockRecord(NODE, Token("epoch-1", 2)), NOTE)
        assert change.outcome is SwapOutcome.UNKNOWN
        change = store.swap_block(BLOCK, before, BlockRecord(NODE, Token("epoch-1", 2)), NOTE)
        assert change.outcome is SwapOutcome.SUCCEEDED
        store = EtcdStore(EtcdClient([proxy.url, member.urls[0]], timeout_s=0.3), "default")
        assert store.read_block(BLOCK).value.token.generation == 2


def test_pages(member, monkeypatch):
    """A list of more keys than a page has each of them once, and shows one moment."""
    monkeypatch.setattr("agent.pools.etcd._PAGE_SIZE", 3)
    store = etcd_store(member.urls)
    for number in range(10):
        store.swap_entry(f"{number:032x}", Stored(None), NodeEntry(NodeRecord("m", "i", "e")))
    assert len(store.list_entries().by_node) == 10
    revision = store.position.revision
    store.swap_entry(NODE, Stored(None), NodeEntry(NodeRecord("m", "i", "e")))
    assert len(store.list_entries().by_node) == 11
    assert store.position.revision == revision + 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(status=200, body=b"<html>"), InvalidAnswer),
        (Fault(status=200, body=b"{}"), InvalidAnswer),
        (Fault(status=200, body=b'{"header":{"cluster_id":"1","revision":"1"},"kvs":[1]}'), InvalidAnswer),
        (Fault(status=200, body=b'{"header":{"cluster_id":"1","revision":"1"},"kvs":[{"key":"!"}]}'), InvalidAnswer),
        (Fault(status=301, headers={"Location": "https://192.0.2.1"}), InvalidAnswer),
        (Fault(status=404, body=b"Not Found\n"), NotFound),
    ],
)
def test_other_answers(fault, kind):
    """An answer that no etcd gives is an error; a change with a server's error is UNKNOWN."""
    with KubernetesDouble().running() as server:
        store = etcd_store([server.url])
        server.faults.append(fault)
        with pytest.raises(kind):
            store.read_block(BLOCK)
        for status, outcome in ((500, SwapOutcome.UNKNOWN), (503, SwapOutcome.UNKNOWN), (404, SwapOutcome.LOST)):
            server.faults.append(Fault(status=status, body=b""))
            assert store.swap_block(BLOCK, Stored(FREE), OWNED, NOTE).outcome is outcome
