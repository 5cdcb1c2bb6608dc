"""Detection of namespaces that still exist (attachment.presence): GONE needs proof."""

import os
import socket

import pytest

from attachment import presence as presence_module
from attachment.presence import HostInterfaces, Presence, get_presence

HERE = f"/proc/{os.getpid()}/ns/net"


@pytest.fixture
def init(tmp_path, monkeypatch):
    """A directory that replaces /proc/1, with process 1 of the host."""
    (tmp_path / "init" / "ns").mkdir(parents=True)
    (tmp_path / "init" / "root").mkdir()
    (tmp_path / "init" / "ns" / "pid").touch()
    monkeypatch.setattr(presence_module, "INIT", str(tmp_path / "init"))
    monkeypatch.setattr(presence_module, "_FIRST_PID_NAMESPACE", os.stat(tmp_path / "init" / "ns" / "pid").st_ino)
    return tmp_path / "init"


def add_for_init(init, path, target=HERE):
    """Adds a namespace at a path below the root directory of process 1."""
    link = init / "root" / path.lstrip("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def test_a_namespace_at_its_path_is_here(init):
    """A namespace at its path is HERE, without further proof."""
    assert get_presence(HERE) is Presence.HERE


def test_path_that_is_missing_everywhere_is_gone(init, tmp_path):
    """A path that is missing or a plain file for this process and for process 1 is GONE."""
    (tmp_path / "file").write_text("")
    assert get_presence("/no/such/x") is Presence.GONE
    assert get_presence(str(tmp_path / "file")) is Presence.GONE
    assert get_presence(f"{tmp_path}/file/x") is Presence.GONE


def test_path_that_only_process_1_has_is_elsewhere(init):
    """A namespace at a path that only process 1 has is ELSEWHERE."""
    add_for_init(init, "/no/such/x")
    assert get_presence("/no/such/x") is Presence.ELSEWHERE
    assert get_presence("/no/./such/../such/x") is Presence.ELSEWHERE
    assert get_presence("/../no/such/x") is Presence.ELSEWHERE


@pytest.mark.parametrize("target", ["/no/such", "such", "../../../no/such"])
def test_links_are_followed_below_the_root_of_process_1(init, target):
    """/var/run, a link to /run, is resolved below the root directory of process 1, not of this process."""
    add_for_init(init, "/no/such/x")
    (init / "root" / "no" / "link").symlink_to(target)
    assert get_presence("/no/link/x") is Presence.ELSEWHERE
    assert get_presence("/no/link/y") is Presence.GONE


def test_loop_of_links_is_no_proof(init):
    """A loop of symbolic links is no proof."""
    (init / "root" / "no").symlink_to("/no")
    assert get_presence("/no/such/x") is Presence.UNKNOWN


@pytest.mark.parametrize("mac", ["00:00:00:00:00:00", "02:00:00:00:00:00"])
def test_path_that_only_the_container_sees_is_no_proof(init, mac):
    """The path of an apptainer instance exists only in the instance: GONE needs its bridge without its veth."""
    netns = "/var/lib/apptainer/mnt/session/netns"
    assert get_presence(netns) is Presence.UNKNOWN
    assert get_presence(netns, HostInterfaces("lo")) is Presence.ELSEWHERE
    expected = Presence.GONE if mac == "00:00:00:00:00:00" else Presence.UNKNOWN
    assert get_presence(netns, HostInterfaces("vethno", "lo", mac)) is expected


def test_without_access_to_process_1_nothing_is_gone(init, monkeypatch):
    """If process 1 is hidden or not accessible, a missing path is no proof."""
    monkeypatch.setattr(presence_module, "INIT", "/no/such/process")
    assert get_presence("/no/such/x") is Presence.UNKNOWN


def test_existing_host_veth_proves_that_the_attachment_is_running(init):
    """An attachment whose host veth exists is not GONE, whatever its path."""
    interface = socket.if_nameindex()[0][1]
    assert get_presence("/no/such/x", HostInterfaces(interface)) is Presence.ELSEWHERE
    for absent in ("no-such-veth", "longer-than-any-name-of-an-interface", "caf\u00e9"):
        assert get_presence("/no/such/x", HostInterfaces(absent)) is Presence.GONE


def test_process_1_of_a_container_proves_less(init, monkeypatch):
    """If process 1 is a container's, a path must be missing beside another attachment's namespace."""
    monkeypatch.setattr(presence_module, "_FIRST_PID_NAMESPACE", 0)
    assert presence_module.get_obstacle() != ""
    directory = init / "root" / "no" / "such"
    directory.mkdir(parents=True)
    (directory / "plain").touch()
    add_for_init(init, "/no/such/other")
    add_for_init(init, "/not/such/other")

    def presence_of(path, *others):
        return get_presence(path, others=lambda: others)

    assert presence_of("/no/such/x") is Presence.UNKNOWN  # the owner of the other namespace is unknown
    assert presence_of("/no/such/x", "/no/such/x", "/no/such/y", "/not/such/other") is Presence.UNKNOWN
    assert presence_of("/no/such/x", "/no/such/y", "/no/such/other") is Presence.GONE
    assert presence_of("/no/such/other", "/no/such/other") is Presence.ELSEWHERE
    # a mount that was not propagated to this mount namespace
    assert presence_of("/no/such/plain", "/no/such/other") is Presence.UNKNOWN


@pytest.mark.parametrize("path", ["", "\0", "x\0y"])
def test_invalid_path_is_unknown(init, path):
    """The presence of an empty or invalid path is UNKNOWN."""
    assert get_presence(path) is Presence.UNKNOWN


@pytest.fixture
def init_of_a_container(init, monkeypatch):
    """A process 1 of a container."""
    monkeypatch.setattr(presence_module, "_FIRST_PID_NAMESPACE", 0)


@pytest.mark.parametrize(
    ("bridge", "mac", "expected"),
    [
        ("lo", "00:00:00:00:00:00", Presence.GONE),
        ("lo", "02:00:00:00:00:01", Presence.UNKNOWN),
        ("nosuch0", "00:00:00:00:00:00", Presence.UNKNOWN),
        ("", "", Presence.UNKNOWN),
    ],
)
def test_in_a_container_an_existing_bridge_without_the_veth_is_proof(init_of_a_container, bridge, mac, expected):
    """In a container, an existing bridge of the attachment and a missing host veth are proof."""
    assert get_presence("/no/such/x", HostInterfaces("nosuch1", bridge, mac)) is expected
