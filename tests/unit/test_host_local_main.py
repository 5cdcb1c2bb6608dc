"""host-local's verbs in this process, on a store in a temporary directory."""

import io
import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from attachment.cache import ResultCache
from cni import skel
from ipam.host_local import resolv
from ipam.host_local.main import PLUGIN
from process import signals
from process.signals import Terminated
from tests.support.streams import MemoryStdin
from tests.unit.test_host_local_index import CALLS, interrupt


class Runtime:
    """Calls the plugin for one network as a runtime does, without a process."""

    def __init__(self, data_dir):
        self.directory = f"{data_dir}/net"
        self.ipam = {"type": "host-local", "dataDir": str(data_dir), "ranges": [[{"subnet": "10.1.2.0/24"}]]}

    def __call__(self, command, container_id="cid", *, args="", ifname="eth0", version="1.1.0", ipam=None, **keys):
        names = {"CNI_COMMAND": command, "CNI_CONTAINERID": container_id, "CNI_IFNAME": ifname}
        env = {**names, "CNI_NETNS": "/dev/null", "CNI_PATH": "/bin", "CNI_ARGS": args}
        config = {"name": "net", "cniVersion": version, "ipam": {**self.ipam, **(ipam or {})}, **keys}
        stdin = json.dumps({key: value for key, value in config.items() if value is not None}).encode()
        stdout = io.BytesIO()
        status = skel.run(PLUGIN, env, MemoryStdin(stdin), stdout, about="")
        answer = json.loads(stdout.getvalue()) if stdout.getvalue() else None
        assert (status == 0) is (answer is None or "code" not in answer)
        return answer

    def files(self):
        names = os.listdir(self.directory) if os.path.isdir(self.directory) else []
        return sorted(name for name in names if name[0].isdigit() or ":" in name)

    def write(self, name, content):
        os.makedirs(self.directory, exist_ok=True)
        Path(self.directory, name).write_text(content, newline="")


@pytest.fixture
def run(tmp_path):
    return Runtime(tmp_path / "leases")


def test_result_has_addresses_routes_and_dns(run, tmp_path):
    """ADD returns addresses and gateways, all attributes of the routes, and the settings of resolvConf."""
    (tmp_path / "resolv.conf").write_text("nameserver 10.0.0.1\n")
    route = {"dst": "0.0.0.0/0", "mtu": 1400, "advmss": 1300, "priority": 5, "table": 7, "scope": 0}
    routes = [route, {"dst": "10.9.0.0/16", "gw": "10.1.2.9"}]
    answer = run("ADD", ipam={"routes": routes, "resolvConf": str(tmp_path / "resolv.conf")})
    assert answer == {
        "cniVersion": "1.1.0",
        "ips": [{"address": "10.1.2.2/24", "gateway": "10.1.2.1"}],
        "routes": routes,
        "dns": {"nameservers": ["10.0.0.1"]},
    }


def test_missing_resolv_conf_fails_only_add(run):
    """ADD names the unreadable file and reserves nothing; DEL and CHECK do not read it."""
    assert run("ADD") is not None
    missing = {"resolvConf": "/no/such/file"}
    answer = run("ADD", "other", ipam=missing)
    assert (answer["code"], answer["msg"]) == (5, "open /no/such/file: No such file or directory")
    assert run("CHECK", ipam=missing) is None
    assert run("DEL", ipam=missing) is None
    assert run.files() == []


def test_resolv_conf_is_parsed_as_by_resolvers(tmp_path):
    """Comments, unknown lines and other bytes than UTF-8 are skipped, the last domain counts, and lists are joined."""
    text = b"# c\n; c\n\n nameserver 1.1.1.1 rest\nnameserver 2.2.2.2\r\nnameserver\n\xff\xfe\ndomain a\ndomain b x\n"
    text += b"search s1 s2\nsearch s3\noptions ndots:2 rotate\nsortlist x y\n"
    (tmp_path / "resolv.conf").write_bytes(text)
    assert resolv.read(str(tmp_path / "resolv.conf")).to_json() == {
        "domain": "b",
        "nameservers": ["1.1.1.1", "2.2.2.2"],
        "options": ["ndots:2", "rotate"],
        "search": ["s1", "s2", "s3"],
    }


def test_check_needs_any_address_of_the_attachment(run):
    """CHECK succeeds with an address of the attachment or a legacy one, and fails with the reference's text."""
    answer = run("CHECK")
    assert (answer["code"], answer["msg"]) == (999, "host-local: Failed to find address added by container cid")
    run.write("10.7.7.7", "cid")
    assert run("CHECK") is None
    run("ADD", "other")
    assert run("CHECK", "other") is None
    assert run("CHECK", "other", ifname="eth1")["code"] == 999


def test_del_releases_only_the_attachments_address(run):
    """DEL releases the attachment's address, without one a reservation of its container ID, and succeeds again."""
    run("ADD", "a")
    run("ADD", "b")
    run("ADD", "a", ifname="eth1")
    run.write("10.1.2.9", "a")
    for remaining in (["10.1.2.3", "10.1.2.4", "10.1.2.9"], ["10.1.2.3", "10.1.2.4"], ["10.1.2.3", "10.1.2.4"]):
        assert run("DEL", "a") is None
        assert run.files() == remaining


@pytest.mark.parametrize(
    "ranges", [None, [], "x", [[]], [[{}]], [[{"subnet": "10.9.9.9/8"}]], [[{"subnet": "10.0.0.0/8"}]] * 2]
)
def test_del_works_with_invalid_ranges(run, ranges):
    """DEL releases the address although the ranges are invalid."""
    run("ADD")
    assert run("DEL", ipam={"ranges": ranges}) is None
    assert run.files() == []


def test_del_releases_before_it_reports_errors(run):
    """Two addresses of a family in 0.2.0 are reported after the release; invalid CNI_ARGS are no error."""
    run("ADD")
    answer = run("DEL", version="0.2.0", ipam={"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]})
    assert answer["msg"] == "CNI version 0.2.0 does not support more than 1 address per family"
    assert run.files() == []
    run("ADD")
    assert run("DEL", args="X=1") is None
    assert run.files() == []


def valid(*pairs):
    return [{"containerID": container_id, "ifname": ifname} for container_id, ifname in pairs]


@pytest.mark.parametrize("key", ["cni.dev/valid-attachments", "cni.dev/attachments"])
def test_gc_keeps_valid_attachments(run, key):
    """GC releases every other address of this network, keeps remarks and other files, and creates no store."""
    assert run("GC", **{key: []}) is None
    assert not os.path.exists(run.directory)
    for name in "abc":
        run("ADD", name)
    run("ADD", "a", ifname="eth1")
    run.write("10.1.2.100", "a")
    run.write("10.1.2.101", "stale")
    run.write("10.1.2.102", "kept for the printer")
    run.write("10.1.2.103", "")
    run.write("other-file", "stale")
    assert run("GC", **{key: valid(("a", "eth0"), ("c", "eth0"))}) is None
    assert run.files() == ["10.1.2.100", "10.1.2.102", "10.1.2.2", "10.1.2.4"]
    assert {"lock", "last_reserved_ip.0", "other-file"} <= set(os.listdir(run.directory))
    assert run("CHECK", "a") is None
    assert run("CHECK", "b")["code"] == 999


def test_gc_continues_after_a_failure(run, monkeypatch):
    """An address that cannot be released is reported at the end, and the others are released."""
    for name in "abc":
        run("ADD", name)
    real = os.unlink

    def unlink(path):
        if path.endswith("/10.1.2.3"):
            raise PermissionError(13, "Permission denied")
        real(path)

    monkeypatch.setattr(os, "unlink", unlink)
    answer = run("GC", **{"cni.dev/valid-attachments": []})
    assert answer["msg"] == f"cannot release {run.directory}/10.1.2.3: Permission denied"
    assert run.files() == ["10.1.2.3"]


def test_status_reports_every_exhausted_set(run):
    """STATUS has code 50 with the numbers of each exhausted set, and succeeds otherwise."""
    small = [[{"subnet": "10.1.2.0/30"}], [{"subnet": "10.1.3.0/24"}], [{"subnet": "10.1.4.0/30"}]]
    assert run("STATUS", ipam={"ranges": small}) is None
    assert not os.path.exists(run.directory)
    run("ADD", ipam={"ranges": small})
    answer = run("STATUS", ipam={"ranges": small})
    assert answer["code"] == 50
    assert answer["msg"].count("1 of 1 in use, 0 of them by containers that are no longer running") == 2
    assert run("STATUS", ipam={"ranges": None}) is None


def test_status_reports_an_unusable_store(run, tmp_path):
    """STATUS has code 50 if ADD could not use the directory."""
    (tmp_path / "leases").write_text("")
    assert run("STATUS")["code"] == 50


ENTRIES = {
    "blank": lambda path: path.write_text("\n"),
    "remark": lambda path: path.write_text("kept for the printer"),
    "directory": Path.mkdir,
    "link": lambda path: path.symlink_to("/nowhere"),
}


@pytest.mark.every_case
@pytest.mark.parametrize("create", ENTRIES.values(), ids=ENTRIES)
def test_entries_without_an_owner_count_as_in_use(run, create, tmp_path, monkeypatch):
    """A remark, or an entry that is no reservation, counts as in use, and not as a container no longer running."""
    entry = {"networkName": "net", "containerId": "cid", "ifName": "eth0", "netns": str(tmp_path / "gone")}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "net-cid-eth0").write_text(json.dumps(entry))
    read = partial(ResultCache.read, directory=str(tmp_path / "results"))
    monkeypatch.setattr(ResultCache, "read", read)
    ipam = {"ranges": [[{"subnet": "10.1.2.0/29", "rangeEnd": "10.1.2.3"}]]}
    run("ADD", ipam=ipam)
    create(Path(run.directory) / "10.1.2.3")
    numbers = "2 of 2 in use, 1 of them by containers that are no longer running"
    status, added = run("STATUS", ipam=ipam), run("ADD", "b", ipam=ipam)
    assert (status["code"], numbers in status["msg"], numbers in added["details"]) == (50, True, True), (status, added)
    assert run("GC", **{"cni.dev/valid-attachments": []}) is None
    assert run.files() == ["10.1.2.3"]


def test_signal_at_any_step_is_delivered_after_the_verb(run, monkeypatch):
    """Whenever SIGTERM arrives, the verb blocks it until ADD ends, and DEL finds both addresses."""

    def handler(signum, frame):
        raise Terminated

    pools = [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]
    before = signal.signal(signal.SIGTERM, handler)
    delivered = 0
    try:
        for step in range(70):
            steps = interrupt(step, lambda: os.kill(os.getpid(), signal.SIGTERM), CALLS)
            answer = None
            with monkeypatch.context() as patch:
                for name, function in steps.items():
                    patch.setattr(os, name, function)
                try:
                    with signals.blocked():
                        answer = run("ADD", ipam={"ranges": pools})
                except Terminated:
                    delivered += 1
            assert answer is not None
            assert run.files() == [ip["address"][:-3] for ip in answer["ips"]]
            assert run("DEL") is None
    finally:
        signal.signal(signal.SIGTERM, before)
    assert delivered > 30
