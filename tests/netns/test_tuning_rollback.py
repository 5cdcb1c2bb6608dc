"""ADD of tuning that fails or is killed at any step leaves pod, host and backup as they were."""

import pytest

from tests.support.bandwidth_network import connect_veth
from tests.support.injection import run_injected
from tests.support.tuned import ALL

# Whatever else is there, this many settings were written before the last one is refused by the kernel.
SETTINGS = {"net.core.somaxconn": "77", "net.ipv4.ip_default_ttl": "11", "net.ipv4.conf.IFNAME.arp_filter": "1"}
WRONG = {"net.ipv4.tcp_rmem": "x"}


@pytest.fixture
def before(host, sandbox):
    """The result of the plugin before; veth0 leads to the pod."""
    return connect_veth(host, sandbox)


@pytest.fixture
def whole(tuning):
    """Tuning with everything that can be asked for."""
    return tuning.having(sysctl=SETTINGS, mtuBothEnds=True, **ALL)


@pytest.mark.parametrize("count", range(len(SETTINGS) + 1))
def test_a_setting_that_is_refused(whole, sandbox, before, count):
    """Whichever setting is refused, those before it are as they were, and there is no backup."""
    settings = dict(list(SETTINGS.items())[:count]) | WRONG | dict(list(SETTINGS.items())[count:])
    error = whole.having(sysctl=settings).refused(sandbox, before)
    assert error["msg"] == "write /proc/sys/net/ipv4/tcp_rmem: invalid argument"
    whole.check(sandbox, whole.add(sandbox, before))


@pytest.mark.parametrize("first", [{"mtu": 1400}, {"mtu": 1400, "mac": "02:00:00:00:00:41", "mtuBothEnds": True}])
def test_a_second_add_that_fails(tuning, whole, sandbox, before, first):
    """The backup of an earlier ADD is the same after one that failed, and serves DEL."""
    empty = tuning.everything(sandbox)
    net = tuning.having(**first)
    net.add(sandbox, before)
    whole.having(sysctl=WRONG).refused(sandbox, before)
    net.delete(sandbox)
    assert tuning.everything(sandbox) == empty


def test_the_references_backup_after_a_failure(tuning, whole, sandbox, before, reference):
    """A backup that the reference made is still its own after an ADD that failed: without a note."""
    empty = tuning.everything(sandbox)
    net = tuning.having(mtu=1400)
    net.by(reference).add(sandbox, before)
    whole.having(sysctl=WRONG).refused(sandbox, before)
    assert whole.notes() == {}
    net.by(reference).delete(sandbox)
    assert tuning.everything(sandbox) == empty


def test_a_directory_in_the_place_of_the_backup(whole, sandbox, before):
    """ADD is refused and DEL tells of it, when all else is removed, the draft of that ADD, too."""
    whole.add(sandbox, before)
    backup = whole.data_dir / f"{sandbox.name}_eth0.json"
    backup.unlink()
    backup.mkdir()
    assert whole.run("ADD", sandbox, before).error()["code"] == 5
    assert whole.run("DEL", sandbox).error()["code"] == 5
    assert whole.notes() == {}
    assert list(whole.data_dir.iterdir()) == [backup]
    backup.rmdir()
    assert whole.delete(sandbox) == ""


@pytest.mark.parametrize("where", ["a file", "a file above"])
def test_a_data_directory_that_takes_no_file(whole, sandbox, before, tmp_path, where):
    """Where no backup can be made nothing is changed, and STATUS tells it beforehand; what is idle does not need it."""
    path = tmp_path / "plain"
    path.touch()
    data_dir = {"a file": path, "a file above": path / "x"}[where]
    net = whole.having(dataDir=str(data_dir))
    error = net.run("ADD", sandbox, before).error()
    assert error["code"] == 5
    assert error["msg"].startswith("failed to save file eth0.json: ")
    error = net.having(cniVersion="1.1.0").run("STATUS").error()
    assert error["code"] == 50
    assert error["msg"].startswith(f"tuning cannot be served: cannot create files in {data_dir}: ")
    assert net.delete(sandbox) == ""
    plain = net.having(mtu=None, mac=None, promisc=None, allmulti=None, txQLen=None)
    plain.check(sandbox, plain.add(sandbox, before))
    plain.having(cniVersion="1.1.0").run("STATUS").assert_silent()


@pytest.mark.needs("syscall_injection")
@pytest.mark.parametrize(
    "injection",
    [
        *(f"pwrite64:error=EPERM:when={number}" for number in (1, 2, 3)),
        *(f"write:error=ENOSPC:when={number}" for number in (1, 2)),
        "rename:error=EROFS",
        *(f"sendto:error=ENOBUFS:when={number}" for number in (1, 2, 3, 4)),
        *(f"recvfrom:error=ENOBUFS:when={number}" for number in (3, 4)),
        *(f"setns:error=EPERM:when={number}" for number in (1, 3)),
    ],
)
def test_a_call_that_fails(whole, sandbox, before, injection):
    """Whichever system call fails, ADD fails and all is as it was."""
    empty = whole.everything(sandbox)
    config = {**whole.config, "prevResult": before}
    run_injected(whole.host, "tuning", "ADD", config, sandbox, injection).error()
    assert whole.everything(sandbox) == empty


@pytest.mark.needs("syscall_injection")
@pytest.mark.parametrize("call", ["pwrite64", "write", "rename", "sendto", "recvfrom", "setns"])
def test_signals_at_any_call(whole, sandbox, before, call):
    """Terminated, ADD has done all or nothing; killed, whatever it has done to the interface DEL undoes."""
    empty = whole.everything(sandbox)
    config = {**whole.config, "prevResult": before}
    for occurrence in range(1, 5):
        done = run_injected(whole.host, "tuning", "ADD", config, sandbox, f"{call}:signal=TERM:when={occurrence}")
        if done.status == 0:
            whole.check(sandbox, done.result())
            whole.delete(sandbox)
        else:
            assert done.error()["code"] == 11
        _put_back(sandbox)
        assert whole.everything(sandbox) == empty
        run_injected(whole.host, "tuning", "ADD", config, sandbox, f"{call}:signal=KILL:when={occurrence}")
        whole.delete(sandbox)
        _put_back(sandbox)
        assert whole.everything(sandbox) == empty


def _put_back(sandbox):
    """Does what DEL leaves to the end of the pod: its settings."""
    for key, value in (("core/somaxconn", "4096"), ("ipv4/ip_default_ttl", "64"), ("ipv4/conf/eth0/arp_filter", "0")):
        sandbox.set_sysctl(f"net/{key}", value)


def test_a_result_that_cannot_be_told(whole, sandbox, before):
    """When the result cannot be written, the interface is taken back as after DEL."""
    empty = whole.everything(sandbox)
    config = {**whole.config, "prevResult": before}
    with open("/dev/full", "wb") as full:
        assert run_injected(whole.host, "tuning", "ADD", config, sandbox, stdout=full).status == 1
    _put_back(sandbox)
    assert whole.everything(sandbox) == empty
