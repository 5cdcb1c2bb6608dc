"""A directory of networks is read as the runtimes read it: who wins, who is hidden, who is in another's way."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from cni.errors import CniError
from podwire import networks
from podwire.lint import directory
from podwire.lint.directory import LintResult
from podwire.main import PLUGINS
from tests.support.binaries import ROOT

SAMPLES = sorted(path for path in (ROOT / "tests/data/netd").iterdir() if path.is_dir() and path.name != "broken")
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
PTP = {"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}


def bridge(subnet: str, name: str = "cni0", **keys: Any) -> dict[str, Any]:
    return {"type": "bridge", "bridge": name, "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]]}, **keys}


def network(name: str, *plugins: dict[str, Any]) -> str:
    return json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": plugins})


def lint(place: Path, **files: str) -> LintResult:
    """Checks a directory of files, their names' dots written as two underscores."""
    for name, text in files.items():
        (place / name.lstrip("f").replace("__", ".").replace("_", "-")).write_text(text)
    return directory.lint_directory(str(place), PLUGINS, ())


def told(linted: LintResult) -> list[tuple[str, str, str]]:
    return [
        (os.path.basename(page.path), str(found.severity), found.text)
        for page in linted.files
        for found in page.findings
    ]


def winner(linted: LintResult) -> str:
    return os.path.basename(linted.winner.path) if linted.winner else ""


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_what_runtimes_and_providers_write_is_in_order(path):
    """Nothing is wrong with the configurations of containerd, CRI-O, podman, k3s and the others: notes at most."""
    linted = directory.lint_directory(str(path), PLUGINS, ())
    assert linted.winner
    assert {severity for _, severity, _ in told(linted)} <= {"note"}


def test_our_own_samples_are_in_order():
    """There is nothing to say about the sample networks, together and each by itself."""
    linted = directory.lint_directory(str(ROOT / "conf"), PLUGINS, ())
    assert told(linted) == []
    assert winner(linted) == "10-podwire.conflist"
    for path in (ROOT / "conf").glob("*.conflist"):
        assert told(directory.lint_file(str(path), PLUGINS, ())) == []


def test_the_first_file_by_name_wins_whatever_its_suffix(tmp_path):
    """Of *.conf, *.conflist and *.json the first by name is the pods' network."""
    alone = json.dumps({"cniVersion": "1.0.0", "name": "b", "type": "calico"})
    linted = lint(tmp_path, f10_a__conflist=network("a", {"type": "calico"}), f05_b__json=alone)
    assert winner(linted) == "05-b.json"
    assert told(linted) == []


def test_a_broken_file_in_front_is_told_of_with_what_it_does(tmp_path):
    """A file that cannot be used, before the one that can, keeps containerd from using any."""
    linted = lint(tmp_path, f10_a__conflist="{", f20_b__conflist=network("b", {"type": "calico"}), f30_c__conf="[")
    assert winner(linted) == "20-b.conflist"
    assert [(name, severity) for name, severity, _ in told(linted)] == [
        ("10-a.conflist", "note"),
        ("10-a.conflist", "error"),
        ("30-c.conf", "error"),
    ]
    assert "containerd uses no network at all" in told(linted)[0][2]


def test_a_node_with_nothing_but_loopback_is_told_of(tmp_path):
    """Where the first file is loopback's, pods get no address; behind another one it may be."""
    lo = network("lo", {"type": "loopback"})
    assert [found[1] for found in told(lint(tmp_path, f99_lo__conflist=lo))] == ["warning"]
    assert told(lint(tmp_path, f10_a__conflist=network("a", {"type": "calico"}))) == []


def test_a_name_that_libcni_finds_elsewhere_first_is_a_warning(tmp_path):
    """Of two networks of one name libcni finds that in a *.conflist, and the other is told of."""
    alone = json.dumps({"cniVersion": "1.0.0", "name": "a", "type": "calico"})
    linted = lint(tmp_path, f05_a__conf=alone, f10_a__conflist=network("a", {"type": "calico"}))
    assert [(name, severity) for name, severity, _ in told(linted)] == [("05-a.conf", "warning")]
    assert networks.get_network(str(tmp_path), "a").path.endswith("10-a.conflist")


@pytest.mark.parametrize(
    "name",
    ["10-a.conflist.bak", "10-a.conf~", "10-a.yaml", ".10-a.conflist.swp", "10-a.JSON", "10-a.conflist.dpkg-old"],
)
def test_a_file_that_no_runtime_reads_is_a_note(name, tmp_path):
    """What looks like a configuration and is none by its name is told of."""
    (tmp_path / name).write_text("{")
    (tmp_path / "10-a.conflist").write_text(network("a", {"type": "calico"}))
    linted = directory.lint_directory(str(tmp_path), PLUGINS, ())
    assert [found[:2] for found in told(linted)] == [(name, "note")]


def test_what_is_no_configuration_is_left_alone(tmp_path):
    """Directories and the files of network providers beside the configurations are nothing to say."""
    (tmp_path / "multus.d").mkdir()
    (tmp_path / "10-b.conflist").mkdir()
    (tmp_path / "calico-kubeconfig").write_text("apiVersion: v1")
    assert told(lint(tmp_path, f10_a__conflist=network("a", {"type": "calico"}))) == []


def test_a_hidden_file_counts(tmp_path):
    """A file whose name begins with a dot is read by runtimes all the same, and told of."""
    (tmp_path / ".a.conflist").write_text(network("a", {"type": "calico"}))
    linted = directory.lint_directory(str(tmp_path), PLUGINS, ())
    assert winner(linted) == ".a.conflist"
    assert [found[:2] for found in told(linted)] == [(".a.conflist", "note")]


# Two networks: what is told of the second.
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "apart": (bridge("10.1.0.0/16", "cni1"), bridge("10.2.0.0/16", "cni2"), []),
    "same addresses": (bridge("10.1.0.0/16", "cni1"), bridge("10.1.2.0/24", "cni2"), ["overlaps"]),
    "same addresses of ptp": (
        PTP,
        bridge("10.1.2.0/24"),
        ["overlaps"],
    ),
    "two bridges, one subnet": (
        bridge("10.1.0.0/16", "cni1"),
        {
            "type": "bridge",
            "bridge": "cni2",
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/16", "rangeStart": "10.1.9.1", "rangeEnd": "10.1.9.9"},
        },
        ["overlaps"],
    ),
    "one bridge, two gateways": (
        bridge("10.1.0.0/16", isGateway=True),
        bridge("10.2.0.0/16", isDefaultGateway=True),
        ["has the address 10.2.0.1 here, but 10.1.0.1"],
    ),
    "one bridge, two families": (bridge("10.1.0.0/16", isGateway=True), bridge("fd00::/64", isGateway=True), []),
    "one bridge, forced": (
        bridge("10.1.0.0/16", isGateway=True),
        bridge("10.2.0.0/16", isGateway=True, forceAddress=True),
        [],
    ),
    "one bridge, one VLAN": (
        {"type": "bridge", "vlan": 5},
        {"type": "bridge"},
        ["has no VLAN here, but some in"],
    ),
    "one bridge, two mtus": (bridge("10.1.0.0/16", mtu=1400), bridge("10.2.0.0/16"), ["has mtu 0 here, but 1400"]),
    "one bridge by default": (
        {**bridge("10.1.0.0/16", mtu=1400), "bridge": None},
        bridge("10.2.0.0/16", mtu=1500),
        ["mtu 1500 here, but 1400"],
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_networks_in_each_others_way_are_told_of_at_the_later_one(pair, tmp_path):
    """Two networks that give the same addresses, or want one bridge to be two things, are a warning."""
    one, two, expected = PAIRS[pair]
    found = told(lint(tmp_path, f10_a__conflist=network("a", one), f20_b__conflist=network("b", two)))
    severities = {("20-b.conflist", "note" if "VLAN" in pair else "warning")}
    assert [item[:2] for item in found] == [*severities] * len(expected), found
    assert all(part in text for (_, _, text), part in zip(found, expected, strict=True))


def test_two_halves_of_a_subnet_on_two_bridges_are_told_of(tmp_path):
    """Ranges apart do not help when both bridges have a route to the same subnet."""
    halves = [
        {"subnet": "10.1.0.0/16", "rangeStart": f"10.1.{half}.1", "rangeEnd": f"10.1.{half}.9"} for half in (1, 2)
    ]
    plugins = [
        {"type": "bridge", "bridge": f"cni{number}", "ipam": {"type": "host-local", "ranges": [[half]]}}
        for number, half in enumerate(halves)
    ]
    found = told(lint(tmp_path, f10_a__conflist=network("a", plugins[0]), f20_b__conflist=network("b", plugins[1])))
    assert [text.partition(" in ")[0] for _, _, text in found] == [
        '10.1.0.0/16 is on bridge "cni1" here, but on bridge "cni0"'
    ]
    plugins[1]["bridge"] = "cni0"
    same = lint(tmp_path, f10_a__conflist=network("a", plugins[0]), f20_b__conflist=network("b", plugins[1]))
    assert told(same) == []


def test_host_ports_of_two_kinds_are_told_of(tmp_path):
    """Two networks whose host ports are made with different backends are a warning."""
    texts = [
        network(name, bridge(f"10.{number}.0.0/16", f"cni{number}"), {**PORTMAP, "backend": backend})
        for number, (name, backend) in enumerate((("a", "iptables"), ("b", "nftables")))
    ]
    found = told(lint(tmp_path, f10_a__conflist=texts[0], f20_b__conflist=texts[1]))
    assert [(name, severity) for name, severity, _ in found] == [("20-b.conflist", "warning")]


def test_files_that_are_none_do_not_stop_the_others(tmp_path):
    """A FIFO, a dangling link, a huge file and names that are no UTF-8 are told of, and nobody waits for them."""
    os.mkfifo(tmp_path / "10-fifo.conflist")
    (tmp_path / "11-gone.conflist").symlink_to("nowhere")
    (tmp_path / "12-huge.conflist").write_bytes(b" " * (3 << 20))
    (tmp_path / "13-device.conflist").symlink_to("/dev/zero")
    os.close(os.open(os.fsencode(tmp_path) + b"/14-\xff.conflist", os.O_CREAT | os.O_WRONLY))
    linted = lint(tmp_path, f20_b__conflist=network("b", {"type": "calico"}))
    assert winner(linted) == "20-b.conflist"
    assert [text for _, severity, text in told(linted) if severity == "error"] == [
        "it is not a regular file",
        "it cannot be read: No such file or directory",
        "it has more than 2048 KiB",
        "it is not a regular file",
        "the file is empty",
    ]


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    """Without a directory there is nothing to check, which is an error of the command."""
    with pytest.raises(CniError, match="cannot read"):
        directory.lint_directory(str(tmp_path / "gone"), PLUGINS, ())


def test_very_many_networks_are_told_of_in_time(tmp_path):
    """Of hundreds of networks on one bridge each is told of with the first ones that it does not go with."""
    number = 400
    files = {
        f"n{index:03}.conflist": network(f"n{index:03}", bridge("10.1.0.0/16", mtu=1000 + index))
        for index in range(number)
    }
    start = time.process_time()
    linted = lint(tmp_path, **files)
    assert time.process_time() - start < 20
    last = [text for _, _, text in told(linted) if "n399" not in text and "mtu 1399 here" in text]
    assert len(last) == 10
    overlaps = [found for page in linted.files for found in page.findings if "overlaps 10.1.0" in found.text]
    assert len(overlaps) == sum(min(index, 10) for index in range(number))


def test_overlaps_are_found_whatever_lies_between(tmp_path):
    """A subnet inside another one is found, also with smaller ones and those of IPv6 in between by address."""
    subnets = ("10.0.0.0/8", "10.1.0.0/24", "fd00::/64", "10.2.0.0/24", "10.1.0.0/25", "11.0.0.0/24")
    files = {f"{n}.conflist": network(f"n{n}", bridge(own, f"br{n}")) for n, own in enumerate(subnets)}
    found = {
        (os.path.basename(page.path)[0], one.text.split(" of network ")[-1][:4])
        for page in lint(tmp_path, **files).files
        for one in page.findings
        if " overlaps " in one.text
    }
    assert found == {("1", '"n0"'), ("3", '"n0"'), ("4", '"n0"'), ("4", '"n1"')}
