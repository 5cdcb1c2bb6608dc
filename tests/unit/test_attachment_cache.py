"""libcni's result cache (attachment.cache): containers that no longer run; unknown ones count as running."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attachment.cache import ResultCache
from cni.conf import Attachment

HERE = f"/proc/{os.getpid()}/ns/net"
NAMESPACES = {"here": HERE, "absent": "/no/such", "file": __file__, "below": f"{__file__}/x", "unknown": ""}
UNREADABLE = {"empty": "", "text": "{", "list": "[]", "old": '{"ips": []}', "number": '{"networkName": 5}'}
OTHERS = " ".join(f"other{number}:a:eth0:absent" for number in range(20))  # in any order of the directory
# Entries (network:container:interface:namespace), a network, the attachments that are gone, those that may be running.
CASES = {
    "no cache": ("", "net", "", "a:eth0"),
    "an attachment without an entry": ("net:a:eth0:here", "net", "a:eth1 b:eth0", "a:eth0"),
    "no entry of the network": ("net:a:eth0:here net-x:a:eth0:absent", "x", "", "a:eth0 b:eth0"),
    "a namespace": (
        "net:a:eth0:absent net:b:eth0:file net:c:eth0:below net:d:eth0:unknown",
        "net",
        "a:eth0 b:eth0 c:eth0",
        "d:eth0",
    ),
    "dashes": ("net-x:a:eth0:absent", "net", "", "x-a:eth0 z:eth0"),
    "dashes beside an entry": ("net-x:a:eth0:absent net:b:eth0:here", "net", "z:eth0", "b:eth0"),
    "any interface": ("net:a:eth0:absent", "net", "a: b:", ""),
    "any interface, one runs": ("net:a:eth0:absent net:a:eth1:here", "net", "b:", "a:"),
    **{
        f"unreadable, {kind}": (f"net:other:eth0:here net:a:eth0:{kind}", "net", "b:eth0", "a:eth0 a:")
        for kind in UNREADABLE
    },
    "any network": (f"net:a:eth0:here {OTHERS} other:b:eth0:absent", "", "b:eth0 b: z:", "a:eth0 a:"),
    "any network, unreadable": ("net:other:eth0:here net-x:a:eth0:text", "", "b:", "a: a:eth0"),
}


@pytest.fixture
def write(tmp_path):
    def write(network, container_id, netns, ifname="eth0", content=None):
        entry = {"kind": "cniCacheV1", "networkName": network, "containerId": container_id, "ifName": ifname}
        text = json.dumps({**entry, "netns": netns}) if content is None else content
        (tmp_path / f"{network}-{container_id}-{ifname}").write_text(text)

    return write


def is_gone(tmp_path, container_id, ifname="eth0", network="net"):
    return ResultCache.read(network, str(tmp_path)).is_gone(Attachment(container_id, ifname))


@pytest.mark.every_case
@pytest.mark.parametrize(("entries", "network", "gone", "running"), CASES.values(), ids=CASES)
def test_attachments_that_are_gone(tmp_path, write, entries, network, gone, running):
    """An attachment is gone if the network has entries, but none with an existing or unknown namespace for it."""
    for entry in entries.split():
        name, container_id, ifname, kind = entry.split(":")
        write(name, container_id, NAMESPACES.get(kind), ifname, UNREADABLE.get(kind))
    for expected, attachments in ((True, gone), (False, running)):
        for container_id, ifname in (attachment.split(":") for attachment in attachments.split()):
            assert is_gone(tmp_path, container_id, ifname, network) is expected, container_id


def test_without_a_directory_nothing_is_gone(tmp_path):
    """Without the cache's directory no container is known to be gone."""
    assert not is_gone(tmp_path / "absent", "a")


@pytest.mark.parametrize(
    ("name", "sandbox", "expected"),
    [
        ("eth0", "/no/such", True),
        ("eth0", HERE, False),
        ("eth0", "vm-4711", False),
        ("eth0", 5, False),
        ("eth1", "/no/such", False),
    ],
)
def test_the_namespace_of_an_old_libcni_is_in_the_result(tmp_path, name, sandbox, expected):
    """If the cache has no "netns", only the path of the interface in the result counts."""
    interfaces = ["?", {"name": "veth1"}, {"name": name, "sandbox": sandbox}]
    entry = {"networkName": "net", "containerId": "a", "ifName": "eth0", "result": {"interfaces": interfaces}}
    (tmp_path / "net-a-eth0").write_text(json.dumps(entry))
    assert is_gone(tmp_path, "a") is expected


@given(content=st.binary(max_size=60))
def test_any_file_can_be_read(tmp_path_factory, content):
    """Reading the cache does not fail, whatever its files contain."""
    directory = tmp_path_factory.getbasetemp() / "any"
    directory.mkdir(exist_ok=True)
    (directory / "net-a-eth0").write_bytes(content)
    assert not ResultCache.read("net", str(directory)).is_gone(Attachment("a", "eth0"))


def test_addresses_of_the_other_interfaces(tmp_path, write):
    """The addresses of the container's other interfaces that may be running are read from results of any version."""

    def entry(container_id, ifname, netns, result):
        names = {"networkName": "net", "containerId": container_id, "ifName": ifname, "netns": netns}
        write("net", container_id, "", ifname, json.dumps({**names, "result": result}))

    new = {"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}, {"address": "fd00::3/64"}]}
    entry("a", "eth0", HERE, {"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.2/24"}]})
    entry("a", "eth1", HERE, new)
    entry("a", "eth2", HERE, {"cniVersion": "0.2.0", "ip4": {"ip": "10.1.2.4/24"}})
    entry("a", "eth3", "/run/netns/absent", {"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.5/24"}]})
    entry("b", "eth1", HERE, {"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.6/24"}]})
    invalid: list[object] = [None, [], "x", {"cniVersion": 1}, {"cniVersion": "1.0.0", "ips": 7}]
    for number, result in enumerate(invalid):
        entry("a", f"bad{number}", HERE, result)
    addresses = ResultCache.read("net", str(tmp_path)).list_other_addresses(Attachment("a", "eth0"))
    assert sorted(map(str, addresses)) == ["10.1.2.3", "10.1.2.4", "fd00::3"]


def test_fifo_and_huge_file_count_as_running(tmp_path, write):
    """A FIFO and a huge file are not read, and count as running."""
    write("net", "a", HERE)
    os.mkfifo(tmp_path / "net-b-eth0")
    with (tmp_path / "net-c-eth0").open("wb") as file:
        file.truncate(1 << 40)
    assert not is_gone(tmp_path, "b")
    assert not is_gone(tmp_path, "c")
    assert is_gone(tmp_path, "d")


def test_attachment_is_looked_up_without_iterating_over_the_cache(tmp_path, write):
    """Looking up an attachment does not iterate over the files of the cache."""

    class Names(frozenset[str]):
        def __iter__(self):
            raise AssertionError("an iteration")

    write("net", "a", "/proc/self/ns/net")
    cache = ResultCache.read("net", str(tmp_path))
    cache = ResultCache(cache.network, cache.netns_paths, Names(cache._files))
    assert cache.is_gone(Attachment("b", "eth0"))
    assert not cache.is_gone(Attachment("a", "eth0"))
