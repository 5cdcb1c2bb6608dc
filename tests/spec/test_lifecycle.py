"""ADD, CHECK, DEL, GC and STATUS as a runtime runs them: again and again, late, and without a namespace."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.spec import configs
from tests.support import netstate


def later(invoke, version="1.1.0"):
    """Attaches, and returns the configuration that the later verbs get: with ADD's result as prevResult."""
    result = invoke("ADD", invoke.config(version)).result()
    return invoke.config(version, **({"prevResult": result} if version >= "0.4.0" else {}))


def states(invoke):
    return [netstate.state(namespace, netfilter=True) for namespace in (invoke.host, invoke.sandbox)]


def test_all_verbs_in_order(invoke):
    """ADD prints a result, the others nothing; none has anything to say on stderr, in every version that knows them."""
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


def test_nothing_is_left_behind(invoke):
    """After DEL host and sandbox are as they were after the first ADD and DEL: what stays by design does not grow."""
    seen = []
    for _ in range(3):
        invoke("DEL", later(invoke)).assert_silent()
        seen.append(states(invoke))
    assert seen[0] == seen[1] == seen[2]


def test_del_again(invoke):
    """DEL succeeds as often as it is called, with and without prevResult."""
    config = later(invoke)
    for given in (config, config, invoke.config()):
        invoke("DEL", given).assert_silent()


def test_del_without_add(invoke):
    """DEL of what was never there succeeds and changes nothing on the host."""
    before = states(invoke)[0]
    for container_id in ("cid", "never-seen"):
        invoke("DEL", container_id=container_id).assert_silent()
    assert states(invoke)[0] == before


@pytest.mark.parametrize("left", ["unset", "empty", "missing", "file", "deleted"])
def test_del_without_namespace(invoke, left, tmp_path):
    """DEL succeeds without a namespace, and when its path is gone or a plain file was left there; twice."""
    config = later(invoke)
    netns = {"unset": None, "empty": "", "missing": "/no/such/netns", "file": str(tmp_path / "file")}
    (tmp_path / "file").touch()
    if left == "deleted":
        invoke.sandbox.delete()
    for given in (config, invoke.config()):
        invoke("DEL", given, netns=netns.get(left, invoke.sandbox.path)).assert_silent()


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_own_namespace_is_refused(invoke, command):
    """CNI_NETNS that is the plugin's own namespace is code 8, and nothing has changed."""
    before = states(invoke)[0]
    error = invoke(command, netns=invoke.host).error()
    assert (error["code"], error["msg"]) == (8, "plugin's netns and netns from CNI_NETNS should not be the same")
    assert states(invoke)[0] == before
    assert not invoke.store.exists()


@pytest.mark.parametrize("override", ["1", "true", "TRUE"])
def test_the_refusal_can_be_lifted(invoke, override):
    """CNI_NETNS_OVERRIDE lets ADD and DEL work in the plugin's own namespace."""
    env = {"CNI_NETNS_OVERRIDE": override}
    own = invoke.into(invoke.host)
    own("ADD", env=env).result()
    own("DEL", env=env).assert_silent()
    assert own("ADD", env={"CNI_NETNS_OVERRIDE": "yes"}).error()["code"] == 8


def test_a_sandbox_that_is_none_is_refused(invoke, tmp_path):
    """ADD into a missing namespace or a plain file fails in the reference's words and changes nothing."""
    if invoke.plugin not in configs.ENTERS_SANDBOX:
        return
    plain = tmp_path / "file"
    plain.touch()
    before = states(invoke)[0]
    for netns, msg in ((str(plain), f'unknown FS magic on "{plain}"'), ("/no/such/netns", "failed to Statfs")):
        assert msg in invoke("ADD", netns=netns).error()["msg"]
    assert states(invoke)[0] == before
    assert not [file for file in invoke.store.glob("*/*") if file.name.startswith("10.")]


def test_many_at_once(invoke, new_sandbox):
    """ADD and DEL for different containers may run at the same time."""
    count = 8
    pods = [invoke.into(new_sandbox()) for _ in range(count)]
    invoke("DEL", later(invoke)).assert_silent()
    before = states(invoke)[0]

    def attach(number):
        return pods[number]("ADD", config_of(number), container_id=f"cid-{number}").result()

    def detach(number):
        pods[number]("DEL", config_of(number), container_id=f"cid-{number}").assert_silent()

    def config_of(number):
        ports = {"portMappings": [{"hostPort": 8080 + number, "containerPort": 80, "protocol": "tcp"}]}
        return pods[number].config(**({"runtimeConfig": ports} if invoke.plugin == "portmap" else {}))

    with ThreadPoolExecutor(count) as pool:
        results = list(pool.map(attach, range(count)))
        if invoke.plugin in ("bridge", "host-local"):
            assert len({result["ips"][0]["address"] for result in results}) == count
        list(pool.map(detach, range(count)))
    assert states(invoke)[0] == before


def test_a_long_container_id(invoke):
    """Container ids may have 256 characters."""
    long = "c" * 256
    invoke("ADD", container_id=long).result()
    invoke("DEL", container_id=long).assert_silent()
