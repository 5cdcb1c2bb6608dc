"""`podwire bugreport`: all parts of a node in one archive, without secrets, whatever fails."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import programs as stand_ins
from tests.support.namespaces import Namespace
from tests.support.tool import PORTMAP, PORTS, Tool

# Each part of the archive has a limit of time.
pytestmark = [pytest.mark.needs("iptables_nft_nat"), pytest.mark.one_kernel, pytest.mark.alone]

# Every place in which a secret may be, each with its own text.
SECRETS = {
    "token": "T0KEN-in-a-plugin",
    "args": "S3CRET-in-args",
    "unknown": "PASSPHRASE-in-an-unknown-key",
    "url": "https://user:PASSW0RD-in-a-url@host",
    "cni-args": "VALUE-of-CNI_ARGS",
    "environment": "VALUE-of-a-variable",
    "kubeconfig": "KUBECONFIG-token",
    "broken": "SECRET-in-a-broken-file",
}


def unpack(path: Path) -> dict[str, str]:
    """Returns the texts of an archive by their names, without its directory."""
    with tarfile.open(path, "r:gz") as archive:
        members = archive.getmembers()
        assert {member.mode for member in members} == {0o600}
        texts = {}
        for member in members:
            file = archive.extractfile(member)
            assert file is not None
            texts[member.name.partition("/")[2]] = file.read().decode()
        return texts


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The path of the archive."""
    return tmp_path / "node.tar.gz"


@pytest.fixture
def node(tool: Tool, new_sandbox: Callable[[], Namespace]) -> Tool:
    """A network with one pod, which publishes a port."""
    log = tool.directory / "verbs.log"
    tool.configure({**tool.bridge(ipMasq=True), "logFile": str(log)}, PORTMAP)
    tool.succeed("add", "net", new_sandbox().name, "--container-id", "pod1", *PORTS)
    return tool


def test_archive_has_every_part(node: Tool, archive: Path):
    """The archive has the output of the commands, rules, links, routes, neighbours, sysctls, files and log."""
    printed = node.json("bugreport", str(archive))
    assert archive.stat().st_mode & 0o777 == 0o600
    texts = unpack(archive)
    report = json.loads(texts["report.json"])
    assert {part["name"]: part["error"] for part in report["parts"] if part["error"]} == {}
    assert printed["parts"] == report["parts"]
    assert texts.keys() == {part["name"] for part in report["parts"]} | {"report.json", "left-out.txt"}
    assert json.loads(texts["doctor.json"])["complete"]
    assert [pod["containerID"] for pod in json.loads(texts["show.json"])["attachments"]] == ["pod1"]
    for name, content in {
        "doctor.txt": "0 problems",
        "lint.json": '"findings"',
        "ipam-list.txt": "10.22.0.2",
        "stores.txt": "10.22.0.2  20",
        "node/links.txt": "RX: ",
        "node/routes.txt": "10.22.0.0/24 dev cni0",
        "node/rules.txt": "lookup main",
        "node/neighbours.txt": "$ ip -s neighbour show",
        "node/qdiscs.txt": "qdisc noqueue",
        "node/sysctls.txt": "net/ipv4/ip_forward = 1\n",
        "node/proc-net.txt": "cni0",
        "filter/iptables-nft.txt": "CNI-HOSTPORT-DNAT",
        "filter/nftables.txt": "table ip nat",
        "cache/net-pod1-eth0": '"hostPort": 8080',
        "net.d/net.conflist": '"bridge": "cni0"',
        "versions/nft.txt": "nftables v",
    }.items():
        assert content in texts[name], (name, texts[name])
    (pod,) = (text for name, text in texts.items() if name.startswith("pods/"))
    assert all(part in pod for part in ("10.22.0.2/24", "ip -4 rule show", "qdisc", "/proc/thread-self/net/arp"))
    (log,) = (text for name, text in texts.items() if name.startswith("log/") and "journal" not in name)
    assert '"command":"ADD"' in log


def test_archive_has_no_secret(node: Tool, archive: Path, new_sandbox: Callable[[], Namespace]):
    """Secrets of configurations, cache, CNI_ARGS and environment are in no part, and the list names their places."""
    foreign = {"type": "other", "auth_token": SECRETS["token"], "mode": SECRETS["unknown"], "number": 7}
    foreign |= {"policy": {"deep": [SECRETS["unknown"]]}, "ipam": {"type": "host-local", "dataDir": SECRETS["url"]}}
    args = {"cni": {"mac": "02:00:00:00:00:01"}, "labels": [SECRETS["args"]]}
    node.configure({**node.bridge(), "args": args}, {**PORTMAP, "policy": SECRETS["token"]}, name="other")
    pairs = ("IgnoreUnknown=1", f"TOKEN={SECRETS['cni-args']}", "K8S_POD_NAME=web")
    words = ["--container-id", "pod2", *(word for pair in pairs for word in ("--args", pair))]
    node.succeed("add", "other", new_sandbox().name, *words)
    cached = node.cache / "other-pod2-eth0"
    assert SECRETS["cni-args"] in cached.read_text()
    node.configure(foreign, name="foreign")
    (node.directory / "net.d" / "cluster-kubeconfig").write_text(SECRETS["kubeconfig"])
    (node.directory / "net.d" / "broken.conf").write_text('{"name": "' + SECRETS["broken"])
    (node.directory / "verbs.log").write_text(f'{{"error": "{SECRETS["token"]}"}}\n')
    node.succeed("bugreport", str(archive), env={"AWS_SECRET": SECRETS["environment"]})
    texts = unpack(archive)
    shown = [(place, name) for place, secret in SECRETS.items() for name, text in texts.items() if secret in text]
    assert shown == []
    assert '"number": 7' in texts["net.d/foreign.conflist"]
    assert json.loads(texts["cache/other-pod2-eth0"])["cniArgs"][1:] == [
        ["TOKEN", "(left out)"],
        ["K8S_POD_NAME", "web"],
    ]
    for place in ("auth_token", "mode", "policy.deep[0]", "ipam.dataDir", "CNI_ARGS TOKEN", "args.labels[0]"):
        assert place in texts["left-out.txt"], place
    assert "net.d/broken.conf: the whole content" in texts["left-out.txt"]
    assert "environment" in texts["left-out.txt"]


@pytest.mark.long
def test_part_that_fails_is_named(node: Tool, archive: Path, tmp_path: Path):
    """A program that hangs, one that fails and a deleted namespace are named with their reasons; the rest is there."""
    bin_dir = stand_ins.install(tmp_path / "bin", nft="sleep 600", bridge="echo 'no such thing' >&2; exit 5")
    cached = json.loads((node.cache / "net-pod1-eth0").read_text())
    (node.cache / "net-pod1-eth0").write_text(json.dumps({**cached, "netns": "/run/netns/none"}))
    done = node.run("bugreport", str(archive), env={"PATH": f"{bin_dir}:/usr/sbin:/usr/bin:/sbin:/bin"})
    assert done.status == 4, done.stderr
    printed = done.stdout.decode()
    assert "missing filter/nftables.txt: nft -a list ruleset: not done after 5 s" in printed
    assert "missing node/bridge-fdb.txt: bridge -s fdb show: exit status 5: no such thing" in printed
    assert "missing pods/net-pod1-eth0.txt: " in printed
    texts = unpack(archive)
    assert "filter/nftables.txt" not in texts
    assert "CNI-HOSTPORT-DNAT" in texts["filter/iptables-nft.txt"]
    assert not json.loads(texts["report.json"])["complete"]


def test_node_without_programs_has_the_rest(node: Tool, archive: Path, tmp_path: Path):
    """Without the host's programs, gzip included, the archive has the tables of the kernel and all files."""
    hidden = "mount -t tmpfs none /usr/sbin; mount --bind /bin/sh /usr/bin/gzip; mount -t tmpfs none /sbin"
    program = f"{node.bin_dir}/podwire bugreport {archive} --conf-dir={node.directory}/net.d"
    line = f"{hidden}; exec {program} --cache-dir={node.directory}/cache --bin-dir={node.bin_dir}"
    node.host.run("unshare", "--mount", "sh", "-c", f"({line}); [ $? = 4 ]")
    texts = unpack(archive)
    assert "cni0" in texts["node/proc-net.txt"]
    assert "/proc/thread-self/net/route" in texts["pods/net-pod1-eth0.txt"]
    assert "net/ipv4/ip_forward" in texts["node/sysctls.txt"]


def test_archive_is_replaced_or_kept(node: Tool, archive: Path):
    """An existing archive is replaced, and nothing is written to a directory that does not exist."""
    archive.write_text("old")
    node.succeed("bugreport", str(archive))
    assert "report.json" in unpack(archive)
    assert "does not exist" in node.fail(3, "bugreport", str(archive.parent / "none" / "node.tar.gz"))
    assert [path.name for path in archive.parent.iterdir() if "tar.gz" in path.name] == ["node.tar.gz"]
