"""ADD, CHECK, DEL, GC and STATUS as a runtime runs them: repeatedly, late and without a namespace."""

import pytest

from tests.spec import configs
from tests.support import netstate


def add_and_build_config(invoke, version="1.1.0"):
    """Runs ADD, and returns the configuration of later verbs, with ADD's result as prevResult."""
    result = invoke("ADD", invoke.config(version)).result()
    return invoke.config(version, **({"prevResult": result} if version >= "0.4.0" else {}))


def states(invoke):
    return [netstate.state(namespace, netfilter=True) for namespace in (invoke.host, invoke.sandbox)]


def test_all_verbs_in_order(invoke):
    """In every version, ADD prints a result, the other verbs print nothing, and stderr is empty."""
    for version in configs.versions(invoke.plugin):
        added = invoke("ADD", invoke.config(version))
        assert (added.result()["cniVersion"], added.stderr) == (version, "")
        verbs = {"CHECK": "0.4.0", "STATUS": "1.1.0", "GC": "1.1.0", "DEL": "0.1.0"}
        config = invoke.config(version, **({"prevResult": added.json} if version >= "0.4.0" else {}))
        config |= {"cni.dev/valid-attachments": [{"containerID": "cid", "ifname": "eth0"}]}
        for verb, since in verbs.items():
            if version >= since:
                outcome = invoke(verb, config)
                outcome.assert_silent()
                assert outcome.stderr == ""


def test_del_restores_the_state(invoke):
    """After each DEL host and sandbox have the same state as after the first: what stays by design does not grow."""
    after_del = []
    for _ in range(3):
        invoke("DEL", add_and_build_config(invoke)).assert_silent()
        after_del.append(states(invoke))
    assert after_del[0] == after_del[1] == after_del[2]


def test_del_again(invoke):
    """DEL succeeds however often it is called, with and without prevResult."""
    config = add_and_build_config(invoke)
    for variant in (config, config, invoke.config()):
        invoke("DEL", variant).assert_silent()


def test_del_without_add(invoke):
    """DEL of an unknown attachment succeeds and changes nothing on the host."""
    before = states(invoke)[0]
    for container_id in ("cid", "never-seen"):
        invoke("DEL", container_id=container_id).assert_silent()
    assert states(invoke)[0] == before


@pytest.mark.parametrize("path", ["unset", "empty", "missing", "file", "deleted"])
def test_del_without_namespace(invoke, path, tmp_path):
    """DEL succeeds, also twice, without CNI_NETNS, with a missing path, and with a plain file as the path."""
    config = add_and_build_config(invoke)
    netns = {"unset": None, "empty": "", "missing": "/no/such/netns", "file": str(tmp_path / "file")}
    (tmp_path / "file").touch()
    if path == "deleted":
        invoke.sandbox.delete()
    for variant in (config, invoke.config()):
        invoke("DEL", variant, netns=netns.get(path, invoke.sandbox.path)).assert_silent()


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_the_hosts_namespace_is_rejected(invoke, command):
    """The plugin's own namespace as CNI_NETNS causes code 8, and nothing changes."""
    before = states(invoke)[0]
    error = invoke(command, netns=invoke.host).error()
    assert (error["code"], error["msg"]) == (8, "plugin's netns and netns from CNI_NETNS should not be the same")
    assert "do not set CNI_NETNS_OVERRIDE on a host" in error["details"]
    assert states(invoke)[0] == before
    assert not invoke.store.exists()


@pytest.mark.parametrize("override", ["1", "true", "TRUE"])
def test_cni_netns_override_allows_the_hosts_namespace(invoke, override):
    """CNI_NETNS_OVERRIDE lets ADD and DEL work in the plugin's own namespace."""
    env = {"CNI_NETNS_OVERRIDE": override}
    in_host = invoke.with_sandbox(invoke.host)
    in_host("ADD", env=env).result()
    in_host("DEL", env=env).assert_silent()
    assert in_host("ADD", env={"CNI_NETNS_OVERRIDE": "yes"}).error()["code"] == 8


def test_invalid_sandbox_is_rejected(invoke, tmp_path):
    """ADD with a missing namespace or a plain file fails with the reference plugins' message and changes nothing."""
    if invoke.plugin not in configs.ENTERS_SANDBOX:
        return
    plain = tmp_path / "file"
    plain.touch()
    before = states(invoke)[0]
    for netns, msg in ((str(plain), f'unknown FS magic on "{plain}"'), ("/no/such/netns", "failed to Statfs")):
        assert msg in invoke("ADD", netns=netns).error()["msg"]
    assert states(invoke)[0] == before
    assert not [file for file in invoke.store.glob("*/*") if file.name.startswith("10.")]


def test_long_container_id(invoke):
    """Container IDs may have 256 characters."""
    long = "c" * 256
    invoke("ADD", container_id=long).result()
    invoke("DEL", container_id=long).assert_silent()
