"""Backups that change hands between the reference and us: each CHECK and DEL takes the other's work for its own."""

import json

import pytest

from tests.support.bandwidth_network import connect_veth
from tests.support.tuned import ALL, TUNED, now

# What the reference that is installed here (1.1.1) knows: the queue came with 1.4.0, and its CHECK has no IFNAME.
KNOWN = {key: value for key, value in ALL.items() if key != "txQLen"}
SYSCTL = {"net.core.somaxconn": "77", "net.ipv4.conf.eth0.arp_filter": "1"}


@pytest.fixture
def before(host, sandbox):
    """The result of the plugin before; veth0 leads to the pod."""
    return connect_veth(host, sandbox)


@pytest.fixture
def both(tuning, reference):
    """Our tuning and the reference's."""
    return tuning, tuning.by(reference)


@pytest.mark.parametrize("asked", [KNOWN, *({key: value} for key, value in KNOWN.items()), {"sysctl": SYSCTL}, {}])
def test_made_by_one_taken_back_by_the_other(both, sandbox, before, asked):
    """Both make the same result and the same backup to the byte; each checks and restores what the other made."""
    whole, made = both[0].everything(sandbox), []
    for maker, other in (both, both[::-1]):
        result = maker.having(**asked).add(sandbox, before)
        made.append((result["interfaces"], maker.backups(), now(sandbox)))
        for each in (maker, other):
            each.having(**asked).check(sandbox, result)
        other.having(**asked).delete(sandbox, result)
        assert now(sandbox) == whole_attributes(whole)
        assert maker.backups() == {}
    assert made[0] == made[1]


def whole_attributes(whole):
    """Returns what `now` tells, out of a whole state."""
    link = whole["pod"]["links"]["eth0"]
    flags = link["flags"]
    found = {"mac": link["address"], "promisc": "PROMISC" in flags, "mtu": link["mtu"]}
    return found | {"allmulti": "ALLMULTI" in flags, "txQLen": link["txqlen"]}


def test_our_add_after_the_references(both, sandbox, before):
    """Our ADD keeps the values that the reference saved and adds what it did not; DEL of either restores all."""
    ours, theirs = both
    first = now(sandbox)
    for last in both:
        theirs.having(mtu=1400, promisc=True).add(sandbox, before)
        ours.having(**KNOWN).add(sandbox, before)
        assert ours.backup(sandbox) | {"txQLen": 1000} == first
        assert now(sandbox) == TUNED | {"txQLen": 1000}
        last.delete(sandbox)
        assert (now(sandbox), ours.backups()) == (first, {})


def test_the_references_backup_over_ours(both, sandbox, before):
    """What the reference wrote over our backup is the reference's: our note of it counts no more."""
    ours, theirs = both
    ours.having(mtu=1400).add(sandbox, before)
    theirs.having(promisc=True).add(sandbox, before)
    assert ours.gc() == (
        f"tuning: GC leaves 1 backup(s) in {ours.data_dir} alone that name no network: "
        "the reference plugin made them, for this network or another\n"
    )
    assert ours.backup(sandbox) == {"promisc": False}
    ours.delete(sandbox)
    assert (now(sandbox)["mtu"], now(sandbox)["promisc"]) == (1400, False)


def test_a_note_of_another_life_beside_the_references_backup(both, host, new_sandbox):
    """The reference's backup of a new life is not taken for the old one by a note that was left."""
    ours, theirs = (net.having(mtu=1400) for net in both)
    lives, how = [new_sandbox(), new_sandbox()], {"container_id": "same"}
    results = [connect_veth(host, pod, f"veth{number}") for number, pod in enumerate(lives)]
    ours.add(lives[0], results[0], **how)
    theirs.delete(lives[0], **how)
    assert len(ours.notes()) == 1
    theirs.add(lives[1], results[1], **how)
    ours.delete(lives[1], **how)
    assert (now(lives[1])["mtu"], ours.backups(), ours.notes()) == (1500, {}, {})


@pytest.fixture
def alike(host, new_sandbox):
    """Two pods (namespace, result, names) whose backups the reference calls both `a_b_c.json`."""
    attachments = (("a", "b_c"), ("a_b", "c"))
    pods = [new_sandbox() for _ in attachments]
    return [
        (pod, connect_veth(host, pod, f"veth{number}", ifname), {"container_id": container_id, "ifname": ifname})
        for number, (pod, (container_id, ifname)) in enumerate(zip(pods, attachments, strict=True))
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_attachments_of_one_name_are_not_mixed(tuning, alike, order):
    """Each DEL restores what that pod's interface was like, in whichever order they come, and nothing stays."""
    mtus = [1800, 2000]
    for (pod, result, how), mtu in zip(alike, mtus, strict=True):
        pod.ip("link", "set", how["ifname"], "mtu", str(mtu))
        tuning.having(mtu=1400).add(pod, result, **how)
    for pod, _, how in alike[::order]:
        for _ in range(2):
            tuning.delete(pod, **how)
    assert [now(pod, how["ifname"])["mtu"] for pod, _, how in alike] == mtus
    assert (tuning.backups(), tuning.notes()) == ({}, {})


def test_the_references_backup_of_a_name_that_two_have(both, alike):
    """What the reference made is restored; DEL of an attachment that is gone leaves it to the other one."""
    ours, theirs = (net.having(mtu=1400) for net in both)
    (gone, gone_result, gone_how), (pod, result, how) = alike
    ours.add(gone, gone_result, **gone_how)
    theirs.add(pod, result, **how)
    for netns in (gone, "", "/no/such/netns"):
        ours.delete(netns, **gone_how)
    assert ours.backups().keys() == {"a_b_c.json"}
    ours.delete(pod, **how)
    assert [now(each, names["ifname"])["mtu"] for each, _, names in alike] == [1500, 1500]
    assert (ours.backups(), ours.notes()) == ({}, {})


def test_gc(both, host, new_sandbox):
    """GC removes the backups of this network's attachments that are not listed; all else stays, and is counted."""
    ours, theirs = (net.having(mtu=1400) for net in both)
    made = (("keep", ours), ("stale", ours), ("other", ours.having(name="net2")), ("theirs", theirs), ("gone", ours))
    for number, (name, net) in enumerate(made):
        pod = new_sandbox()
        net.add(pod, connect_veth(host, pod, f"veth{number}"), container_id=name)
        if name == "gone":
            theirs.delete(pod, container_id=name)
    foreign = ours.data_dir / "README"
    foreign.write_text("mine")
    assert ours.notes().keys() == {f"{name}_eth0.json" for name in ("keep", "stale", "other", "gone")}
    assert ours.gc(("keep", "eth0"), ("theirs", "eth0")) == ""
    kept = {f"{name}_eth0.json" for name in ("keep", "other", "theirs")}
    assert ours.backups().keys() == kept | {"README"}
    assert ours.notes().keys() == {"keep_eth0.json", "other_eth0.json"}
    assert "leaves 1 backup(s)" in ours.gc()
    assert ours.backups().keys() == {"other_eth0.json", "theirs_eth0.json", "README"}
    assert json.loads(ours.backups()["theirs_eth0.json"]) == {"mtu": 1500}


def test_gc_without_anything(tuning, tmp_path):
    """GC and STATUS of a host where nothing was tuned yet succeed and make nothing."""
    assert tuning.gc() == ""
    tuning.having(cniVersion="1.1.0", mtu=1400).run("STATUS").assert_silent()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keys", [{"mtu": "x"}, {"sysctl": {"kernel.hostname": "x"}}, {"mac": "zz"}])
def test_status_of_a_broken_configuration(tuning, keys):
    """STATUS has code 50 for a configuration that ADD would refuse."""
    error = tuning.having(cniVersion="1.1.0", **keys).run("STATUS").error()
    assert error["code"] == 50
    assert error["msg"].startswith("tuning cannot be served: ")
