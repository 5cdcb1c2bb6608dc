"""Pure functions of the operator's verbs: libcni's order, requests to plugins, the cache, names on the command line."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from attachment import cache
from cni.conf import Attachment
from cni.errors import CniError, Code
from podwire import attachments, networks, repairing
from podwire.layers import Layer
from podwire.networks import Network
from podwire.repairing import FAILED, UNTRIED, PluginRepair, Repairer
from podwire.verbs import invoke, network_list, result_cache, target
from podwire.verbs.invoke import PluginCall, PluginOutcome, PodArgs
from podwire.verbs.network_list import PluginRunner
from process.child import Outcome
from tests.support import libcni
from tests.support.errors import failure_of

POD = PodArgs(Attachment("c1", "eth0"), "/run/netns/web", "A=1;B=2", {"portMappings": [1], "other": 2})
PLUGINS = ({"type": "one"}, {"type": "two", "capabilities": {"portMappings": True}})
RESULT = {"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.3/24"}]}


class ScriptedPlugins:
    """Runs calls by a table of failures, and records them."""

    def __init__(self, **failures: str) -> None:
        self.failures = failures
        self.calls: list[PluginCall] = []

    def __call__(self, call: PluginCall) -> PluginOutcome:
        self.calls.append(call)
        msg = self.failures.get(f"{call.kind}_{call.command}")
        result = {"cniVersion": "1.1.0", "by": call.kind} if call.command == "ADD" else None
        return PluginOutcome(call.kind, call.command, 1.0, result, CniError(100, msg) if msg else None)

    def order(self) -> list[tuple[str, str]]:
        return [(call.kind, call.command) for call in self.calls]


def runtime(tmp_path: Path, serve: ScriptedPlugins, **keys: Any) -> PluginRunner:
    env = {"PATH": "/bin", "CNI_ARGS": "X=1"}
    return PluginRunner(
        ("/opt/cni/bin", "/usr/lib/cni"), env, (Layer(str(tmp_path)),), serve, lambda step: None, **keys
    )


def network(version: str = "1.1.0", **keys: Any) -> Network:
    return Network("net", version, PLUGINS, **keys)


def test_add_runs_forwards_with_the_previous_result(tmp_path):
    """Each plugin gets the previous result, its capabilities, and the caller's environment with new CNI parameters."""
    serve = ScriptedPlugins()
    assert network_list.add(runtime(tmp_path, serve), network(), POD) == {"cniVersion": "1.1.0", "by": "two"}
    one, two = serve.calls
    assert one.request == {"type": "one", "name": "net", "cniVersion": "1.1.0"}
    assert two.request["prevResult"] == {"cniVersion": "1.1.0", "by": "one"}
    assert two.request["runtimeConfig"] == {"portMappings": [1]}
    env = {"COMMAND": "ADD", "CONTAINERID": "c1", "NETNS": "/run/netns/web", "IFNAME": "eth0", "ARGS": "A=1;B=2"}
    env["PATH"] = "/opt/cni/bin:/usr/lib/cni"
    assert two.env == {"PATH": "/bin", **{f"CNI_{name}": value for name, value in env.items()}}


def test_failed_add_is_followed_by_del_of_all(tmp_path):
    """After a failed ADD no further plugin runs ADD, all run DEL even if one fails, and the cache has no entry."""
    serve = ScriptedPlugins(one_ADD="no", two_DEL="no, too")
    assert network_list.add(runtime(tmp_path, serve), network(), POD) is None
    assert serve.order() == [("one", "ADD"), ("two", "DEL"), ("one", "DEL")]
    assert serve.calls[1].request["runtimeConfig"] == {"portMappings": [1]}  # portmap removes what ADD may have made
    assert list(tmp_path.iterdir()) == []


def test_del_runs_backwards_and_stops_at_a_failure(tmp_path):
    """DEL begins with the last plugin, and after a failure the cache keeps the entry."""
    serve = ScriptedPlugins()
    result_cache.write_entry(Layer(str(tmp_path)), network(), POD, RESULT)
    assert not network_list.delete(runtime(tmp_path, ScriptedPlugins(two_DEL="no")), network(), POD, RESULT)
    assert os.path.exists(result_cache.path_of(Layer(str(tmp_path)), "net", POD))
    assert network_list.delete(runtime(tmp_path, serve), network(), POD, RESULT)
    assert serve.order() == [("two", "DEL"), ("one", "DEL")]
    assert all(call.request["prevResult"] == RESULT for call in serve.calls)
    assert not os.path.exists(result_cache.path_of(Layer(str(tmp_path)), "net", POD))


@pytest.mark.parametrize(
    ("version", "cached", "has"),
    [("0.3.1", RESULT, False), ("0.4.0", RESULT, True), ("1.0.0", RESULT, True), ("1.1.0", {"cniVersion": "9"}, False)],
)
def test_del_gets_the_cached_result_since_0_4_0(tmp_path, version, cached, has):
    """DEL gets the cached result in the shape of the list's version since 0.4.0, and runs without an invalid one."""
    serve = ScriptedPlugins()
    assert network_list.delete(runtime(tmp_path, serve), network(version), POD, cached)
    assert serve.order() == [("two", "DEL"), ("one", "DEL")]
    for call in serve.calls:
        result = call.request.get("prevResult")
        passed_version = result.get("cniVersion") if isinstance(result, dict) else None
        assert passed_version == (version if has else None)


def test_dry_run_keeps_the_cache(tmp_path):
    """Without `writes` the cache is not changed."""
    result_cache.write_entry(Layer(str(tmp_path)), network(), POD, RESULT)
    network_list.delete(runtime(tmp_path, ScriptedPlugins(), writes=False), network(), POD, RESULT)
    network_list.add(runtime(tmp_path, ScriptedPlugins(), writes=False), network(), PodArgs(Attachment("c2", "eth0")))
    assert [file.name for file in (tmp_path / "results").iterdir()] == ["net-c1-eth0"]


def test_check_status_and_gc_run_all_plugins(tmp_path):
    """After a failure the next plugin still runs, since it does not depend on the failed one."""
    for command, run in {
        "CHECK": lambda one_runtime: network_list.check(one_runtime, network(), POD, RESULT),
        "STATUS": lambda one_runtime: network_list.status(one_runtime, network()),
        "GC": lambda one_runtime: network_list.gc(one_runtime, network(), lambda: [POD.attachment]),
    }.items():
        one_runtime = runtime(tmp_path, serve := ScriptedPlugins(**{f"one_{command}": "no"}))
        run(one_runtime)
        assert serve.order() == [("one", command), ("two", command)]
        assert one_runtime.failed
    assert serve.calls[0].request["cni.dev/valid-attachments"] == [{"containerID": "c1", "ifname": "eth0"}]
    assert serve.calls[0].env["CNI_CONTAINERID"] == ""


def test_version_decides_which_verbs_run(tmp_path):
    """CHECK is refused before 0.4.0, and foreign plugins run no GC and VERSION instead of STATUS before 1.1.0."""
    one_runtime = runtime(tmp_path, serve := ScriptedPlugins())
    refused = failure_of(lambda: network_list.check(one_runtime, network("0.3.1"), POD, RESULT), CniError)
    assert refused
    assert (refused.code, "CHECK came with 0.4.0" in refused.details) == (1, True)
    network_list.check(one_runtime, network(disable_check=True), POD, RESULT)
    assert network_list.gc(one_runtime, network("1.0.0"), list) == ("one", "two")
    assert serve.calls == []
    assert network_list.status(one_runtime, network("1.0.0")) == ("one", "two")
    assert serve.order() == [("one", "VERSION"), ("two", "VERSION")]


def test_cache_entry_has_the_whole_network(tmp_path):
    """The list in a cache entry has all plugins, also those from files beside it."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "1.conf").write_text('{"type": "beside"}')
    (tmp_path / "net.conflist").write_text('{"name": "net", "cniVersion": "1.0.0", "plugins": [{"type": "one"}]}')
    original = networks.get_network(str(tmp_path), "net")
    text = base64.b64decode(str(result_cache.entry_of(original, POD, RESULT)["config"]))
    again = networks.parse(text, "")
    assert [plugin["type"] for plugin in again.plugins] == ["one", "beside"]
    assert (again.name, again.version) == (original.name, original.version)


def test_the_type_of_a_single_plugin_may_have_another_case():
    """A file of one plugin with "Type", which libcni reads, is a network of this plugin."""
    network = networks.parse(b'{"cniVersion": "1.0.0", "name": "net", "Type": "bridge"}', "10-net.conf")
    assert network.kinds == ("bridge",)


def test_cache_entry_is_written_atomically(tmp_path, monkeypatch):
    """A failed write keeps the existing entry and leaves no temporary file."""
    result_cache.write_entry(Layer(str(tmp_path)), network(), POD, RESULT)
    before = Path(result_cache.path_of(Layer(str(tmp_path)), "net", POD)).read_text()
    assert json.loads(before)["result"] == RESULT
    for name in ("write", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, raise_no_space)
            assert failure_of(
                lambda: result_cache.write_entry(Layer(str(tmp_path)), network(), POD, {"other": 1}), OSError
            )
    (file,) = (tmp_path / "results").iterdir()
    assert file.read_text() == before


def raise_no_space(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome(1, b'{"code": 7, "msg": "bad", "details": "hint"}', b""), "bad; hint"),
        (Outcome(1, b'{"code": "7", "msg": "bad"}', b""), "failed without an error object: exit status 1"),
        (Outcome(-9, b"", b""), "signal 9"),
        (Outcome(0, b"[]", b""), "printed no result"),
        (Outcome(0, b'{"cniVersion"', b""), "printed no result"),
    ],
)
def test_invalid_answers_become_errors(outcome, message):
    """An answer that is neither result nor error object becomes an error that describes it."""
    error = failure_of(lambda: invoke.parse_answer(outcome, call("ADD")), CniError)
    assert message in str(error)


def test_result_without_a_version_has_the_requested_one():
    """A missing version is added as by libcni, and the answers of DEL are not read."""
    assert invoke.parse_answer(Outcome(0, b"{}", b""), call("ADD")) == {"cniVersion": "1.1.0"}
    assert invoke.parse_answer(Outcome(0, b"nonsense", b""), call("DEL")) is None


def test_messages_of_a_plugin_are_kept(tmp_path):
    """What a plugin prints to stderr belongs to its step, from where the tool prints it with the plugin's name."""
    (tmp_path / "one").write_text("#!/bin/sh\necho deprecated >&2; echo '{}'\n")
    (tmp_path / "one").chmod(0o755)
    step = invoke.execute(PluginCall("one", "ADD", {"cniVersion": "1.1.0"}, {}, (str(tmp_path),)))
    assert (step.error, step.stderr) == (None, "deprecated\n")


def call(command: str) -> PluginCall:
    return PluginCall("one", command, {"cniVersion": "1.1.0"}, {}, ())


def test_container_id_is_that_of_cnitool():
    """The ID derived from a path is cnitool's, so that both tools identify the same attachment.

    It is "cnitool-" and the first ten bytes of SHA-512 (containernetworking/cni, cnitool/cnitool.go); here computed by
    `printf /run/netns/web | sha512sum | cut -c1-20`.
    """
    assert target.cnitool_container_id("/run/netns/web") == "cnitool-82e215debf7df4651d36"


def test_namespace_by_path_name_or_pid(tmp_path):
    """A namespace is identified by a path, a name in /run/netns or a PID."""
    assert target.namespace_path("web") == "/run/netns/web"
    assert target.namespace_path("4711") == "/proc/4711/ns/net"
    assert target.namespace_path("/var/run/../x") == "/var/x"
    assert target.namespace_path("./x") == f"{os.getcwd()}/x"


@pytest.mark.parametrize("pairs", [["K"], ["=V"], ["K="], ["K=V;L=W"], ["K=V=W"]])
def test_invalid_cni_args_are_refused(pairs):
    """Arguments that are not K=V are refused, as by cnitool."""
    assert failure_of(lambda: target.cni_args(pairs), CniError)
    assert target.cni_args(["K=V", "L=W"]) == "K=V;L=W"


@pytest.mark.every_case
@pytest.mark.parametrize("text", ["[]", "1", "{", '"x"'])
def test_capability_arguments_are_an_object(text):
    """Capability arguments that are not an object are refused with an example."""
    error = failure_of(lambda: target.capability_args(text), CniError)
    assert error
    assert "portMappings" in error.details


def test_after_a_lock_timeout_no_attachment_is_tried(tmp_path, monkeypatch):
    """After a timeout on the packet filter's lock the other attachments are not tried."""
    (tmp_path / "results").mkdir()
    for number in range(3):
        names = {"networkName": "net", "containerId": f"c{number}", "ifName": "eth0"}
        (tmp_path / "results" / f"net-c{number}-eth0").write_text(json.dumps(names))
    busy = PluginRepair("portmap", error=CniError(Code.TRY_AGAIN_LATER, "the lock is held"))
    monkeypatch.setattr(Repairer, "_one", lambda self, known, identity: repairing.RepairOutcome(known, FAILED, (busy,)))
    outcomes = Repairer({}, (), {}).repair(attachments.list_cached((Layer(str(tmp_path)),)))
    assert [outcome.state for outcome in outcomes] == [FAILED, UNTRIED, UNTRIED]


def test_missing_cache_directory(tmp_path, monkeypatch):
    """A missing --cache-dir is a mistake, as pods would count as gone; the default one and Multus' may be missing."""
    with pytest.raises(CniError, match="does not exist"):
        attachments.require_caches([Layer(str(tmp_path))])
    attachments.require_caches([Layer(str(tmp_path), "00-multus.conf")])
    monkeypatch.setattr(cache, "RESULTS_DIR", Layer(str(tmp_path)).results_dir)
    attachments.require_caches([Layer(str(tmp_path))])


def test_network_of_the_newest_attachment(tmp_path, monkeypatch):
    """The newest attachment decides what configuration a network had, also while DEL removes the file."""
    paths = []
    for time_s, version in ((1, "1.0.0"), (2, "1.1.0")):
        config = {"cniVersion": version, "name": "net", "plugins": [{"type": "bridge"}]}
        paths.append(libcni.write_entry(tmp_path, "net", version, config=config))
        os.utime(paths[-1], (time_s, time_s))
    cached = attachments.list_cached([Layer(str(tmp_path))], "net")
    monkeypatch.setattr(attachments, "list_cached", lambda *args: cached)
    for expected in ("1.1.0", "1.0.0"):
        assert getattr(attachments.get_network([Layer(str(tmp_path))], "net"), "version", "") == expected
        paths.pop().unlink()
