"""Whose an address is: DEL, GC, rollback of the firewall with both variants of iptables, and the reference's rules."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.support import binaries, libcni, seccomp, xtables
from tests.support.firewall_tables import DUAL, IPV4, passing
from tests.support.xtables import TOOLS

FIRST, SECOND = passing("10.22.0.2"), passing("10.22.0.3")
OTHER = "10.22.0.3/16"


@pytest.fixture
def cached(firewall, tmp_path):
    """The network whose plugin sees a cache of the test's own."""
    return firewall.with_cache(tmp_path / "cache")


@pytest.fixture
def theirs(firewall, reference):
    """The same network with the reference's plugin."""
    return replace(firewall, bin_dir=reference)


def remember(net, container_id, *, alive=True, network="net"):
    """Writes a container's entry into the cache; its interfaces went with its namespace."""
    netns = "" if alive else libcni.MISSING_NETNS
    result = {**net.config.get("prevResult", {}), "interfaces": []}
    libcni.write_entry(net.bin_dir, network, container_id, netns=netns, result=result)


def owner(container_id="cid", network="net", ifname="eth0"):
    return f'-m comment --comment "name: \\"{network}\\" id: \\"{container_id}\\" if: \\"{ifname}\\""'


def test_a_record_says_whose_an_address_is(firewall):
    """Each address has one record that names network, container and interface, and the last takes the chain along."""
    firewall.add("first")
    firewall.of(OTHER).add("second", ifname="eth1")
    assert firewall.records() == [
        f"-s 10.22.0.2/32 {owner('first')}",
        f"-s 10.22.0.3/32 {owner('second', ifname='eth1')}",
    ]
    assert firewall.records("ip6tables") == [f"-s fd00:22::2/128 {owner('first')}"]
    firewall.delete("first")
    assert len(firewall.records()) == 1
    firewall.of(OTHER).delete("second", ifname="eth1")
    assert not any("CNI-FORWARD-OWNERS" in line for lines in firewall.everything().values() for line in lines)


def test_del_without_an_earlier_result(firewall):
    """DEL finds the addresses by their records, of this interface only."""
    firewall.add("cid")
    firewall.of(OTHER).add("cid", ifname="eth1")
    firewall.forgotten().delete("other")
    firewall.forgotten().delete("cid", ifname="eth1")
    assert firewall.passing() == FIRST
    firewall.forgotten().delete("cid")
    assert firewall.passing() == firewall.passing("ip6tables") == []
    firewall.forgotten().delete("cid")


def test_del_by_the_cache(cached, theirs):
    """What the reference made DEL finds without prevResult, too, when libcni's cache knows the addresses."""
    theirs.add("cid")
    remember(cached, "cid")
    cached.forgotten().delete("other")
    assert cached.passing() == FIRST
    cached.forgotten().delete("cid")
    assert cached.passing() == []


def test_del_on_a_host_without_chains(firewall):
    """DEL and GC where nothing is succeed, and make nothing."""
    firewall.delete()
    firewall.forgotten().delete()
    firewall.collect()
    assert firewall.everything() == {tool: [] for tool in TOOLS}


def test_del_with_a_broken_configuration(firewall):
    """DEL removes the rules whatever the configuration says by then."""
    firewall.add()
    firewall.having(ingressPolicy=5, backend=7, iptablesAdminChainName=[], prevResult={"ips": "none"}).delete()
    assert firewall.passing() == []


def test_a_late_del(firewall):
    """The DEL of a container that is long gone leaves its address to the one that has it now."""
    firewall.add("gone")
    firewall.add("new")
    assert firewall.records() == [f"-s 10.22.0.2/32 {owner('new')}"]
    before = firewall.everything()
    firewall.delete("gone")
    firewall.forgotten().delete("gone")
    assert firewall.everything() == before
    firewall.check("new")
    firewall.delete("new")
    assert firewall.passing() == []


@pytest.mark.parametrize("alive", [True, False])
def test_an_address_of_two_networks(cached, alive):
    """An address that another network's container has, too, stays until that is deleted or gone with its namespace."""
    other = cached.having(name="other")
    other.add("theirs")
    remember(cached, "theirs", alive=alive, network="other")
    cached.add("ours")
    assert len(cached.records()) == (2 if alive else 1)
    cached.delete("ours")
    assert cached.passing() == (FIRST if alive else [])
    other.delete("theirs")
    assert cached.passing() == []


def test_a_container_that_went_without_del(cached):
    """DEL of one container takes an address away whose other owner, of another network, went with its namespace."""
    other = cached.having(name="other")
    other.add("theirs")
    cached.add("ours")
    remember(cached, "theirs", alive=False, network="other")
    cached.delete("ours")
    assert cached.passing() == cached.records() == []


@pytest.mark.parametrize("name", ["n" * 63, "n" * 200])
def test_long_names(firewall, name):
    """Names that do not fit into a comment are told apart by hashes."""
    net = firewall.having(name=name)
    ids = ["c" * 200, "c" * 201]
    net.add(ids[0])
    net.of(OTHER).add(ids[1])
    assert all("sha512" in line for line in net.records())
    net.forgotten().delete(ids[0])
    assert net.passing() == SECOND
    net.collect((ids[1], "eth0"))
    firewall.collect()
    assert net.passing() == SECOND
    net.collect()
    assert net.passing() == []


@pytest.mark.parametrize("ifname", ['a"b', "a'b", "a\\b", "$a", "é"])
def test_odd_interfaces(firewall, ifname):
    """An interface's name may hold whatever the kernel takes."""
    firewall.add(ifname=ifname)
    before = firewall.everything()
    firewall.add(ifname=ifname)
    assert firewall.everything() == before
    firewall.collect(("cid", ifname))
    assert firewall.everything() == before
    firewall.forgotten().delete(ifname=ifname)
    assert firewall.passing() == firewall.records() == []


@pytest.mark.crowd
def test_pods_that_come_and_go_at_once(firewall):
    """Pods that come while others go keep their records, though the last one that goes takes the chain along."""
    pods = {f"c{n}": firewall.of(f"10.22.1.{n}/16", f"fd00:22::1:{n}/64") for n in range(8)}

    def cycle(name):
        outcomes = [pods[name].run(verb, name) for verb in ("ADD", "DEL", "ADD", "CHECK", "DEL", "ADD")]
        return [outcome.stdout for outcome in outcomes if outcome.status]

    with ThreadPoolExecutor() as pool:
        assert [*pool.map(cycle, pods)] == [[]] * len(pods)
    for tool in TOOLS:
        assert len(firewall.passing(tool)) == len(firewall.records(tool)) * 2 == 16
    firewall.collect()
    assert firewall.passing() == firewall.records() == []


def test_gc(firewall, theirs):
    """GC removes what is of this network and not listed; other networks' and unnamed rules stay, and are counted."""
    firewall.add("live")
    firewall.of(OTHER).add("dead")
    firewall.of("10.22.0.4/16").add("live", ifname="eth1")
    firewall.having(name="net2").of("10.23.0.2/16").add("dead")
    theirs.of("10.24.0.2/16").add("theirs")
    outcome = firewall.collect(("live", "eth0"))
    assert firewall.passing() == [*FIRST, *passing("10.23.0.2", "10.24.0.2")]
    assert "leaves 2 rule(s)" in outcome.stderr
    firewall.check("live")
    firewall.collect()
    assert firewall.passing() == passing("10.23.0.2", "10.24.0.2")
    assert firewall.records("ip6tables") == []


def test_gc_leaves_an_address_that_is_somebody_elses(firewall):
    """An address whose other owner lives stays when GC removes the record of the one that does not."""
    firewall.having(name="net2").add("live")
    firewall.add("dead")
    firewall.collect()
    assert firewall.passing() == FIRST
    assert firewall.records() == [f"-s 10.22.0.2/32 {owner('live', 'net2')}"]


@pytest.mark.parametrize("verb", ["DEL", "GC"])
def test_the_policy_of_a_bridge_that_is_gone(firewall, verb):
    """The policy of a bridge that is not there any more goes with the next DEL or GC, of whichever network."""
    net = firewall.having(ingressPolicy="isolated")
    net.add()
    before = net.rules()
    firewall.host.ip("link", "add", "cni1", "type", "bridge")
    net.of(*DUAL, bridge="cni1").add("other")
    net.of(*DUAL, bridge="cni1").delete("other")
    assert sum("cni1" in line for line in net.rules()["iptables"]) == 3
    firewall.host.ip("link", "del", "cni1")
    open_net = firewall.having(name="third").of("10.24.0.2/16")
    open_net.delete("third") if verb == "DEL" else open_net.collect()
    assert not any("cni1" in line for lines in net.rules().values() for line in lines)
    stages = [line for line in net.rules()["iptables"] if "ISOLATION" in line]
    assert stages == [line for line in before["iptables"] if "ISOLATION" in line]


@pytest.mark.parametrize("verb", ["DEL", "GC"])
def test_the_policy_of_a_bridge_that_the_plugin_may_not_look_up(firewall, tmp_path, verb):
    """Where a seccomp filter denies ioctl, a bridge that exists does not count as gone: its policy stays."""
    net = firewall.having(ingressPolicy="isolated")
    net.add("stays")
    before = [line for line in net.rules()["iptables"] if "ISOLATION" in line]
    bin_dir = seccomp.install(tmp_path, binaries.directory() / "firewall", "ioctl")
    keys = {"name": "other", "cniVersion": "1.1.0", "cni.dev/valid-attachments": []}
    outcome = replace(firewall.forgotten().having(**keys), bin_dir=bin_dir).run(verb, "gone")
    assert (outcome.status, outcome.stdout) == (0, b"") or outcome.error()["msg"].startswith("cannot run iptables")
    assert [line for line in net.rules()["iptables"] if "ISOLATION" in line] == before


def test_the_policy_of_a_link_to_one_pod(firewall):
    """The policy of a veth, which ptp makes for each pod, goes with DEL, before the veth goes."""
    firewall.host.ip("link", "add", "veth1234", "type", "veth", "peer", "name", "p")
    net = firewall.having(ingressPolicy="same-bridge").of(*DUAL, bridge="veth1234")
    net.add()
    assert any("veth1234" in line for line in net.rules()["iptables"])
    net.delete()
    assert not any("veth1234" in line for lines in net.rules().values() for line in lines)


# The reference knows "isolated" since 1.7.0; since then the rules that all bridges share have another comment.
VARIANTS = [{}, {"ingressPolicy": "same-bridge"}, {"iptablesAdminChainName": "MINE"}]


@pytest.mark.parametrize("keys", VARIANTS)
def test_what_the_reference_made(firewall, theirs, keys):
    """The reference's rules are accepted by CHECK, completed by ADD with no more than a record, removed by DEL."""
    ours, theirs = firewall.having(**keys), theirs.having(**keys)
    theirs.add()
    made = theirs.rules()
    ours.check()
    ours.add()
    assert ours.rules() == made
    ours.delete()
    after = ours.everything()
    theirs.add()
    theirs.delete()
    assert theirs.everything() == after


@pytest.mark.parametrize("keys", VARIANTS)
def test_what_we_made(firewall, theirs, keys):
    """The reference's ADD and ours change nothing in each other's rules, its CHECK accepts ours, its DEL removes them.

    What all bridges share an old one makes again, with its own comment; ours then leaves the way there once.
    """
    ours, theirs = firewall.having(**keys), theirs.having(**keys)
    ours.add()
    made = ours.everything()
    theirs.add()
    ours.check()
    theirs.check()
    ours.add()
    again = ours.everything()
    for tool in TOOLS:
        assert [line for line in again[tool] if "(ingressPolicy: same-bridge)" not in line] == [
            line for line in made[tool] if "(ingressPolicy: same-bridge)" not in line
        ]
    theirs.delete()
    assert ours.passing() == ours.passing("ip6tables") == []
    ours.collect()
    assert ours.records() == ours.records("ip6tables") == []


def test_the_reference_goes_on_beside_us(firewall, theirs):
    """Pods of both on one host, one bridge and one policy keep their rules while the other's come and go."""
    ours = firewall.having(ingressPolicy="same-bridge")
    theirs = theirs.of(OTHER).having(ingressPolicy="same-bridge")
    theirs.add("theirs")
    ours.add("ours")
    ours.check("ours")
    theirs.check("theirs")
    ours.delete("ours")
    assert ours.passing() == SECOND
    ours.add("ours")
    theirs.delete("theirs")
    assert ours.passing() == FIRST
    ours.check("ours")


def broken(tools, directory, program):
    """Makes a directory of the same programs of which one always fails, and returns it."""
    found = xtables.counted(tools, directory)
    (found / program).write_text("#!/bin/sh\nexit 1\n")
    return found


@pytest.mark.parametrize("repeated", [False, True])
def test_a_family_that_fails(firewall, tmp_path, repeated):
    """When one family's program fails nothing of the pod's is left, unless an earlier ADD had made it."""
    firewall.of(OTHER, "fd00:22::3/64").add("other")
    if repeated:
        firewall.of(IPV4).add()
    before = firewall.everything()
    net = replace(firewall, tools=broken(firewall.tools, tmp_path / "broken", "ip6tables-restore"))
    assert net.run("ADD").error()["code"] == 999
    assert firewall.everything() == before


def test_without_ip6tables(firewall, tmp_path):
    """A host without ip6tables serves pods of IPv4, and a dual-stack one is refused with the program's name."""
    tools = tmp_path / "sbin"
    tools.mkdir()
    for program in firewall.tools.glob("iptables*"):
        shutil.copy(program.resolve(), tools / program.name)
    (tmp_path / "bin").mkdir()
    plugin = tmp_path / "bin" / "firewall"
    hidden = f"mount --bind {tools} /usr/sbin; exec {binaries.directory() / 'firewall'}"
    plugin.write_text(f"#!/bin/sh\nexec unshare --mount sh -ec '{hidden}'\n")
    plugin.chmod(0o755)
    net = replace(firewall, bin_dir=plugin.parent, tools=tools)
    assert "ip6tables-restore is not installed" in net.run("ADD").error()["msg"]
    assert firewall.passing() == []
    net.having(cniVersion="1.1.0").forgotten().run("STATUS").assert_silent()
    pod = net.of(IPV4)
    pod.add()
    pod.check()
    assert firewall.passing() == FIRST
    pod.delete()
    assert firewall.passing() == []
