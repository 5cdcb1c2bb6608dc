"""Whether a namespace still exists (attachment.presence): GONE needs proof, whatever files this process can see."""

import os
import socket

import pytest

from attachment import presence as presence_module
from attachment.presence import HostInterfaces, Presence, get_presence

HERE = f"/proc/{os.getpid()}/ns/net"


@pytest.fixture
def init(tmp_path, monkeypatch):
    """A directory that stands for the root directory of process 1, which is the machine's first."""
    (tmp_path / "init" / "ns").mkdir(parents=True)
    (tmp_path / "init" / "root").mkdir()
    (tmp_path / "init" / "ns" / "pid").touch()
    monkeypatch.setattr(presence_module, "INIT", str(tmp_path / "init"))
    monkeypatch.setattr(presence_module, "_FIRST_PID_NAMESPACE", os.stat(tmp_path / "init" / "ns" / "pid").st_ino)
    return tmp_path / "init"


def shown_to_init(init, path, target=HERE):
    """Gives process 1 a namespace at a path."""
    link = init / "root" / path.lstrip("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def test_a_namespace_at_its_path_is_here(init):
    """What is at its path needs no other witness."""
    assert get_presence(HERE) is Presence.HERE


def test_a_path_that_is_missing_here_and_there_is_gone(init, tmp_path):
    """A path that neither this process nor process 1 has, or has as a plain file, is gone."""
    (tmp_path / "file").write_text("")
    assert get_presence("/no/such/x") is Presence.GONE
    assert get_presence(str(tmp_path / "file")) is Presence.GONE
    assert get_presence(f"{tmp_path}/file/x") is Presence.GONE


def test_what_process_1_sees_is_elsewhere(init):
    """A namespace that only process 1 has at that path exists."""
    shown_to_init(init, "/no/such/x")
    assert get_presence("/no/such/x") is Presence.ELSEWHERE
    assert get_presence("/no/./such/../such/x") is Presence.ELSEWHERE
    assert get_presence("/../no/such/x") is Presence.ELSEWHERE


@pytest.mark.parametrize("target", ["/no/such", "such", "../../../no/such"])
def test_links_are_followed_below_the_root_of_process_1(init, target):
    """/var/run is a link to /run, which is resolved below process 1's root directory, not this process's."""
    shown_to_init(init, "/no/such/x")
    (init / "root" / "no" / "link").symlink_to(target)
    assert get_presence("/no/link/x") is Presence.ELSEWHERE
    assert get_presence("/no/link/y") is Presence.GONE


def test_links_that_lead_nowhere_prove_nothing(init):
    """A loop of links is no proof."""
    (init / "root" / "no").symlink_to("/no")
    assert get_presence("/no/such/x") is Presence.UNKNOWN


def test_without_a_look_at_process_1_nothing_is_gone(init, monkeypatch):
    """Where process 1 is hidden, or may not be looked at, a missing path is no proof."""
    monkeypatch.setattr(presence_module, "INIT", "/no/such/process")
    assert get_presence("/no/such/x") is Presence.UNKNOWN


def test_an_interface_of_it_proves_that_it_is_running(init):
    """An attachment whose interface on the host exists is not gone, whatever its path says."""
    interface = socket.if_nameindex()[0][1]
    assert get_presence("/no/such/x", HostInterfaces(interface)) is Presence.ELSEWHERE
    for absent in ("no-such-veth", "longer-than-any-name-of-an-interface", "caf\u00e9"):
        assert get_presence("/no/such/x", HostInterfaces(absent)) is Presence.GONE


def test_process_1_of_a_container_proves_less(init, monkeypatch):
    """Where process 1 is not the machine's, a path must be missing beside another attachment's namespace."""
    monkeypatch.setattr(presence_module, "_FIRST_PID_NAMESPACE", 0)
    assert presence_module.get_obstacle() != ""
    directory = init / "root" / "no" / "such"
    directory.mkdir(parents=True)
    (directory / "plain").touch()
    shown_to_init(init, "/no/such/other")
    shown_to_init(init, "/not/such/other")

    def judged(path, *others):
        return get_presence(path, others=lambda: others)

    assert judged("/no/such/x") is Presence.UNKNOWN  # the owner of the other namespace is unknown
    assert judged("/no/such/x", "/no/such/x", "/no/such/y", "/not/such/other") is Presence.UNKNOWN
    assert judged("/no/such/x", "/no/such/y", "/no/such/other") is Presence.GONE
    assert judged("/no/such/other", "/no/such/other") is Presence.ELSEWHERE
    # a mount that did not come into this mount namespace
    assert judged("/no/such/plain", "/no/such/other") is Presence.UNKNOWN


@pytest.mark.parametrize("path", ["", "\0", "x\0y"])
def test_no_path_is_unknown(init, path):
    """What is no path cannot be judged."""
    assert get_presence(path) is Presence.UNKNOWN


@pytest.fixture
def of_a_container(init, monkeypatch):
    """A process 1 that is a container's."""
    monkeypatch.setattr(presence_module, "_FIRST_PID_NAMESPACE", 0)


@pytest.mark.parametrize(
    ("bridge", "mac", "judged"),
    [
        ("lo", "00:00:00:00:00:00", Presence.GONE),
        ("lo", "02:00:00:00:00:01", Presence.UNKNOWN),
        ("nosuch0", "00:00:00:00:00:00", Presence.UNKNOWN),
        ("", "", Presence.UNKNOWN),
    ],
)
def test_in_a_container_a_bridge_without_the_veth_proves_it(of_a_container, bridge, mac, judged):
    """A container without the host's processes has proof if the attachment's bridge is there, and its veth is not."""
    assert get_presence("/no/such/x", HostInterfaces("nosuch1", bridge, mac)) is judged
