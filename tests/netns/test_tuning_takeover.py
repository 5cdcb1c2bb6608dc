"""Rollback of tuning, and pods of both the reference plugin and podwire: each accepts the other's backups."""

import json

import pytest

from tests.support.bandwidth_network import connect_veth
from tests.support.tuning_network import ALL, get_attributes

# The keys of the installed reference plugin (1.1.1): txQLen came with 1.4.0, and its CHECK does not replace IFNAME.
REFERENCE_KEYS = {key: value for key, value in ALL.items() if key != "txQLen"}
SYSCTL = {"net.core.somaxconn": "77", "net.ipv4.conf.eth0.arp_filter": "1"}
# Written before or after the invalid setting.
SETTINGS = {"net.core.somaxconn": "77", "net.ipv4.ip_default_ttl": "11", "net.ipv4.conf.IFNAME.arp_filter": "1"}
INVALID = {"net.ipv4.tcp_rmem": "x"}


@pytest.fixture
def full_tuning(tuning):
    """Tuning with all sysctls and attributes."""
    return tuning.having(sysctl=SETTINGS, mtuBothEnds=True, **ALL)


@pytest.mark.parametrize("count", range(len(SETTINGS) + 1))
def test_refused_setting(full_tuning, sandbox, prev_result, count):
    """If the kernel refuses a sysctl, the ones written before it are restored, and no backup remains."""
    settings = dict(list(SETTINGS.items())[:count]) | INVALID | dict(list(SETTINGS.items())[count:])
    error = full_tuning.having(sysctl=settings).add_error(sandbox, prev_result)
    assert error["msg"] == "write /proc/sys/net/ipv4/tcp_rmem: invalid argument"
    full_tuning.check(sandbox, full_tuning.add(sandbox, prev_result))


def test_directory_with_the_name_of_the_backup(full_tuning, sandbox, prev_result):
    """If a directory has the name of the backup ADD fails, and DEL removes the note and the draft, then fails."""
    full_tuning.add(sandbox, prev_result)
    backup = full_tuning.data_dir / f"{sandbox.name}_eth0.json"
    backup.unlink()
    backup.mkdir()
    assert full_tuning.run("ADD", sandbox, prev_result).error()["code"] == 5
    assert full_tuning.run("DEL", sandbox).error()["code"] == 5
    assert full_tuning.notes() == {}
    assert list(full_tuning.data_dir.iterdir()) == [backup]
    backup.rmdir()
    assert full_tuning.delete(sandbox) == ""


@pytest.mark.parametrize("where", ["a file", "a file above"])
def test_unusable_data_dir(full_tuning, sandbox, prev_result, tmp_path, where):
    """Without a usable dataDir ADD changes nothing and STATUS fails, but a configuration without attributes works."""
    path = tmp_path / "plain"
    path.touch()
    data_dir = {"a file": path, "a file above": path / "x"}[where]
    net = full_tuning.having(dataDir=str(data_dir))
    error = net.run("ADD", sandbox, prev_result).error()
    assert error["code"] == 5
    assert error["msg"].startswith("failed to save file eth0.json: ")
    error = net.having(cniVersion="1.1.0").run("STATUS").error()
    assert error["code"] == 50
    assert error["msg"].startswith(f"tuning does not work on this node: cannot create files in {data_dir}: ")
    assert net.delete(sandbox) == ""
    plain = net.having(mtu=None, mac=None, promisc=None, allmulti=None, txQLen=None)
    plain.check(sandbox, plain.add(sandbox, prev_result))
    plain.having(cniVersion="1.1.0").run("STATUS").assert_silent()


@pytest.fixture
def both(tuning, reference):
    """Podwire's tuning and the reference plugin's."""
    return tuning, tuning.with_plugin(reference)


@pytest.mark.parametrize(
    "keys", [REFERENCE_KEYS, *({key: value} for key, value in REFERENCE_KEYS.items()), {"sysctl": SYSCTL}, {}]
)
def test_each_plugin_restores_the_others_changes(both, sandbox, prev_result, keys):
    """Both plugins create the same result and the same backup, and each checks and restores the other's changes."""
    first, created = get_attributes(sandbox), []
    for creator, other in (both, both[::-1]):
        result = creator.having(**keys).add(sandbox, prev_result)
        created.append((result["interfaces"], creator.backups(), get_attributes(sandbox)))
        for each in (creator, other):
            each.having(**keys).check(sandbox, result)
        other.having(**keys).delete(sandbox, result)
        assert (get_attributes(sandbox), creator.backups()) == (first, {})
    assert created[0] == created[1]


def test_add_after_the_reference_plugins(both, sandbox, prev_result):
    """ADD keeps the values in the reference plugin's backup and adds missing ones, and either DEL restores all."""
    podwire, reference = both
    first = get_attributes(sandbox)
    for last in both:
        reference.having(mtu=1400, promisc=True).add(sandbox, prev_result)
        podwire.having(**REFERENCE_KEYS).add(sandbox, prev_result)
        assert podwire.backup(sandbox) | {"txQLen": 1000} == first
        assert get_attributes(sandbox) == ALL | {"txQLen": 1000}
        last.delete(sandbox)
        assert (get_attributes(sandbox), podwire.backups()) == (first, {})


def test_reference_backup_of_a_shared_name(both, host, new_sandbox):
    """DEL of a stale attachment keeps the reference plugin's backup, and DEL of the other one restores from it."""
    podwire, reference = (net.having(mtu=1400) for net in both)
    stale, pod = new_sandbox(), new_sandbox()
    of_stale, of_pod = {"container_id": "a", "ifname": "b_c"}, {"container_id": "a_b", "ifname": "c"}
    podwire.add(stale, connect_veth(host, stale, "veth0", "b_c"), **of_stale)
    reference.add(pod, connect_veth(host, pod, "veth1", "c"), **of_pod)
    for netns in (stale, "", "/no/such/netns"):
        podwire.delete(netns, **of_stale)
    assert podwire.backups().keys() == {"a_b_c.json"}
    podwire.delete(pod, **of_pod)
    assert [get_attributes(stale, "b_c")["mtu"], get_attributes(pod, "c")["mtu"]] == [1500, 1500]
    assert (podwire.backups(), podwire.notes()) == ({}, {})


def test_gc_removes_stale_backups(both, host, new_sandbox):
    """GC removes the backups of this network's unlisted attachments, and keeps and counts the others."""
    podwire, reference = (net.having(mtu=1400) for net in both)
    other = podwire.having(name="net2")
    pods = (("keep", podwire), ("stale", podwire), ("other", other), ("reference", reference), ("deleted", podwire))
    for number, (name, net) in enumerate(pods):
        pod = new_sandbox()
        net.add(pod, connect_veth(host, pod, f"veth{number}"), container_id=name)
        if name == "deleted":
            reference.delete(pod, container_id=name)
    foreign = podwire.data_dir / "README"
    foreign.write_text("mine")
    assert podwire.notes().keys() == {f"{name}_eth0.json" for name in ("keep", "stale", "other", "deleted")}
    assert podwire.gc(("keep", "eth0"), ("reference", "eth0")) == ""
    kept = {f"{name}_eth0.json" for name in ("keep", "other", "reference")}
    assert podwire.backups().keys() == kept | {"README"}
    assert podwire.notes().keys() == {"keep_eth0.json", "other_eth0.json"}
    assert podwire.gc() == (
        f"tuning: GC leaves 1 backup(s) in {podwire.data_dir} alone that name no network: "
        "the reference plugin made them, for this network or another\n"
    )
    assert podwire.backups().keys() == {"other_eth0.json", "reference_eth0.json", "README"}
    assert json.loads(podwire.backups()["reference_eth0.json"]) == {"mtu": 1500}
