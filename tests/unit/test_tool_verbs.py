"""The pure parts of the operator's verbs: libcni's order, what each plugin is asked, the cache, names on the line."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cni.conf import Attachment
from cni.errors import CniError
from podwire import networks
from podwire.networks import Network
from podwire.verbs import invoke, network_list, result_cache, target
from podwire.verbs.invoke import Call, Pod, Step
from podwire.verbs.network_list import Runtime
from process.child import Outcome
from tests.support.errors import failure_of

POD = Pod(Attachment("c1", "eth0"), "/run/netns/web", "A=1;B=2", {"portMappings": [1], "other": 2})
PLUGINS = ({"type": "one"}, {"type": "two", "capabilities": {"portMappings": True}})
RESULT = {"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.3/24"}]}


class Scripted:
    """Serves calls by a table of failures, and notes them."""

    def __init__(self, **failures: str) -> None:
        self.failures = failures
        self.calls: list[Call] = []

    def __call__(self, call: Call) -> Step:
        self.calls.append(call)
        msg = self.failures.get(f"{call.kind}_{call.command}")
        result = {"cniVersion": "1.1.0", "by": call.kind} if call.command == "ADD" else None
        return Step(call.kind, call.command, 1.0, result, CniError(100, msg) if msg else None)

    def order(self) -> list[tuple[str, str]]:
        return [(call.kind, call.command) for call in self.calls]


def runtime(tmp_path: Path, serve: Scripted, **keys: Any) -> Runtime:
    return Runtime(
        ("/opt/cni/bin", "/usr/lib/cni"), {"PATH": "/bin", "CNI_ARGS": "X=1"}, str(tmp_path), serve, str, **keys
    )


def network(version: str = "1.1.0", **keys: Any) -> Network:
    return Network("net", version, PLUGINS, **keys)


def test_add_goes_forwards_with_the_result_of_the_one_before(tmp_path):
    """Each plugin gets the result before it, its own capabilities, and the caller's environment with our parameters."""
    serve = Scripted()
    assert network_list.add(runtime(tmp_path, serve), network(), POD) == {"cniVersion": "1.1.0", "by": "two"}
    one, two = serve.calls
    assert one.request == {"type": "one", "name": "net", "cniVersion": "1.1.0"}
    assert two.request["prevResult"] == {"cniVersion": "1.1.0", "by": "one"}
    assert two.request["runtimeConfig"] == {"portMappings": [1]}
    assert two.env == {
        "PATH": "/bin",
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/run/netns/web",
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": "A=1;B=2",
        "CNI_PATH": "/opt/cni/bin:/usr/lib/cni",
    }


def test_a_failed_add_is_followed_by_del_of_all(tmp_path):
    """After a failure nothing further is added, all are deleted though one fails, and nothing is remembered."""
    serve = Scripted(one_ADD="no", two_DEL="no, too")
    assert network_list.add(runtime(tmp_path, serve), network(), POD) is None
    assert serve.order() == [("one", "ADD"), ("two", "DEL"), ("one", "DEL")]
    assert list(tmp_path.iterdir()) == []


def test_del_goes_backwards_and_stops_at_a_failure(tmp_path):
    """DEL begins with the last plugin, and what failed is still remembered."""
    serve = Scripted()
    result_cache.write_entry(str(tmp_path), network(), POD, RESULT)
    assert not network_list.delete(runtime(tmp_path, Scripted(two_DEL="no")), network(), POD, RESULT)
    assert os.path.exists(result_cache.path_of(str(tmp_path), "net", POD))
    assert network_list.delete(runtime(tmp_path, serve), network(), POD, RESULT)
    assert serve.order() == [("two", "DEL"), ("one", "DEL")]
    assert all(call.request["prevResult"] == RESULT for call in serve.calls)
    assert not os.path.exists(result_cache.path_of(str(tmp_path), "net", POD))


@pytest.mark.parametrize(("version", "has"), [("0.3.1", False), ("0.4.0", True), ("1.0.0", True)])
def test_del_has_the_cached_result_from_0_4_0_on(tmp_path, version, has):
    """The cached result is given to DEL in the shape of the list's version, and not before 0.4.0."""
    serve = Scripted()
    network_list.delete(runtime(tmp_path, serve), network(version), POD, RESULT)
    for call in serve.calls:
        found = call.request.get("prevResult")
        assert (isinstance(found, dict) and found["cniVersion"] == version) == has


def test_del_goes_on_without_a_result_that_cannot_be_read(tmp_path):
    """A cached result that is none does not keep anything from being deleted."""
    serve = Scripted()
    assert network_list.delete(runtime(tmp_path, serve), network(), POD, {"cniVersion": "9.9.9"})
    assert not any("prevResult" in call.request for call in serve.calls)


def test_what_is_only_planned_is_not_forgotten(tmp_path):
    """Without writes the cache stays as it is."""
    result_cache.write_entry(str(tmp_path), network(), POD, RESULT)
    network_list.delete(runtime(tmp_path, Scripted(), writes=False), network(), POD, RESULT)
    network_list.add(runtime(tmp_path, Scripted(), writes=False), network(), Pod(Attachment("c2", "eth0")))
    assert [file.name for file in (tmp_path / "results").iterdir()] == ["net-c1-eth0"]


def test_check_status_and_gc_ask_all(tmp_path):
    """A failure does not keep the next plugin from being asked, since nothing depends on it."""
    for command, run in {
        "CHECK": lambda own: network_list.check(own, network(), POD, RESULT),
        "STATUS": lambda own: network_list.status(own, network()),
        "GC": lambda own: network_list.gc(own, network(), lambda: [POD.attachment]),
    }.items():
        own = runtime(tmp_path, serve := Scripted(**{f"one_{command}": "no"}))
        run(own)
        assert serve.order() == [("one", command), ("two", command)]
        assert own.failed
    assert serve.calls[0].request["cni.dev/valid-attachments"] == [{"containerID": "c1", "ifname": "eth0"}]
    assert serve.calls[0].env["CNI_CONTAINERID"] == ""


def test_versions_decide_what_is_asked(tmp_path):
    """CHECK is refused before 0.4.0; before 1.1.0 plugins of others are not asked for GC, and VERSION for STATUS."""
    own = runtime(tmp_path, serve := Scripted())
    refused = failure_of(lambda: network_list.check(own, network("0.3.1"), POD, RESULT), CniError)
    assert refused
    assert refused.code == 1
    network_list.check(own, network(disable_check=True), POD, RESULT)
    assert network_list.gc(own, network("1.0.0"), list) == ("one", "two")
    assert serve.calls == []
    assert network_list.status(own, network("1.0.0")) == ("one", "two")
    assert serve.order() == [("one", "VERSION"), ("two", "VERSION")]


def test_an_entry_reads_as_the_network_it_was(tmp_path):
    """The list in an entry has all plugins, those of files beside it, too, and stands for itself."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "1.conf").write_text('{"type": "beside"}')
    (tmp_path / "net.conflist").write_text('{"name": "net", "cniVersion": "1.0.0", "plugins": [{"type": "one"}]}')
    found = networks.get_network(str(tmp_path), "net")
    text = base64.b64decode(str(result_cache.entry_of(found, POD, RESULT)["config"]))
    again = networks.parse(text, "")
    assert [plugin["type"] for plugin in again.plugins] == ["one", "beside"]
    assert (again.name, again.version) == (found.name, found.version)


def test_an_entry_is_whole_or_not_there(tmp_path, monkeypatch):
    """What cannot be written leaves the entry that there is, and no draft."""
    result_cache.write_entry(str(tmp_path), network(), POD, RESULT)
    before = Path(result_cache.path_of(str(tmp_path), "net", POD)).read_text()
    assert json.loads(before)["result"] == RESULT
    for name in ("write", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            assert failure_of(lambda: result_cache.write_entry(str(tmp_path), network(), POD, {"other": 1}), OSError)
    (file,) = (tmp_path / "results").iterdir()
    assert file.read_text() == before


def failing(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(1, b'{"code": 7, "msg": "bad", "details": "hint"}', b""), "bad; hint"),
        (Outcome(1, b'{"code": "7", "msg": "bad"}', b""), "failed without an error object: exit status 1"),
        (Outcome(-9, b"", b""), "signal 9"),
        (Outcome(0, b"[]", b""), "printed no result"),
        (Outcome(0, b'{"cniVersion"', b""), "printed no result"),
    ],
)
def test_a_plugin_answers_anything(outcome, said):
    """What is no result and no error object becomes an error that says what there was."""
    error = failure_of(lambda: invoke.parse_answer(outcome, call("ADD")), CniError)
    assert said in str(error)


def test_a_result_without_a_version_is_of_the_one_asked_for():
    """An answer is completed as libcni does it, and only ADD's and VERSION's are read."""
    assert invoke.parse_answer(Outcome(0, b"{}", b""), call("ADD")) == {"cniVersion": "1.1.0"}
    assert invoke.parse_answer(Outcome(0, b"nonsense", b""), call("DEL")) is None


def call(command: str) -> Call:
    return Call("one", command, {"cniVersion": "1.1.0"}, {}, ())


def test_the_container_id_is_that_of_cnitool():
    """The ID made of a path is cnitool's, so that both tools mean the same attachment.

    It is "cnitool-" and the first ten bytes of SHA-512 (containernetworking/cni, cnitool/cnitool.go); here computed by
    `printf /run/netns/web | sha512sum | cut -c1-20`.
    """
    assert target.cnitool_container_id("/run/netns/web") == "cnitool-82e215debf7df4651d36"


def test_a_namespace_is_named_in_three_ways(tmp_path):
    """A path, a name in /run/netns and a PID are told apart."""
    assert target.namespace_path("web") == "/run/netns/web"
    assert target.namespace_path("4711") == "/proc/4711/ns/net"
    assert target.namespace_path("/var/run/../x") == "/var/x"
    assert target.namespace_path("./x") == f"{os.getcwd()}/x"


@pytest.mark.parametrize("pairs", [["K"], ["=V"], ["K="], ["K=V;L=W"], ["K=V=W"]])
def test_pairs_that_are_none_are_refused(pairs):
    """What is no K=V is refused, as cnitool does."""
    assert failure_of(lambda: target.cni_args(pairs), CniError)
    assert target.cni_args(["K=V", "L=W"]) == "K=V;L=W"


@pytest.mark.parametrize("text", ["[]", "1", "{", '"x"'])
def test_capability_arguments_are_an_object(text):
    """Anything else is refused with an example."""
    error = failure_of(lambda: target.capability_args(text), CniError)
    assert error
    assert "portMappings" in error.details


def test_results_are_converted_to_the_lists_version():
    """A cached result of another version is given in that of the list, one of the same untouched."""
    assert network_list.convert_result(RESULT, "1.1.0") is RESULT
    old = network_list.convert_result(RESULT, "0.4.0")
    assert isinstance(old, Mapping)
    assert old["ips"] == [{"version": "4", "address": "10.1.2.3/24"}]
