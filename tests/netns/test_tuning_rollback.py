"""An ADD of tuning that fails at any step leaves pod, host and backup unchanged."""

import pytest

from tests.support.injection import run_injected
from tests.support.tuning_network import ALL

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


@pytest.mark.parametrize("first", [{"mtu": 1400}, {"mtu": 1400, "mac": "02:00:00:00:00:41", "mtuBothEnds": True}])
def test_failed_repeated_add(tuning, full_tuning, sandbox, prev_result, first):
    """A failed ADD keeps the backup of an earlier ADD, from which DEL restores the interface."""
    state = tuning.everything(sandbox)
    net = tuning.having(**first)
    net.add(sandbox, prev_result)
    full_tuning.having(sysctl=INVALID).add_error(sandbox, prev_result)
    net.delete(sandbox)
    assert tuning.everything(sandbox) == state


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
def test_failing_system_call(full_tuning, sandbox, prev_result, injection):
    """If any system call fails, ADD fails and changes nothing."""
    state = full_tuning.everything(sandbox)
    config = {**full_tuning.config, "prevResult": prev_result}
    run_injected(full_tuning.host, "tuning", "ADD", config, sandbox, injection).error()
    assert full_tuning.everything(sandbox) == state
