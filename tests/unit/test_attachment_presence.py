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


def link_for_init(init, path, target=HERE):
    """Creates a link below the root directory of process 1, by default to a namespace."""
    link = init / "root" / path.lstrip("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


X, LINK, LOOP = {"/no/such/x": HERE}, "/no/link", {"/no": "/no"}
PLACES: list[tuple[dict[str, str], str, Presence]] = [
    ({}, HERE, Presence.HERE),
    *(({}, path, Presence.GONE) for path in ("/no/such/x", __file__, f"{__file__}/x")),
    *((X, path, Presence.ELSEWHERE) for path in ("/no/such/x", "/no/./such/../such/x", "/../no/such/x")),
    *(({**X, LINK: target}, f"{LINK}/x", Presence.ELSEWHERE) for target in ("/no/such", "such", "../../../no/such")),
    ({**X, LINK: "/no/such"}, f"{LINK}/y", Presence.GONE),
    (LOOP, "/no/such/x", Presence.UNKNOWN),
    *(({}, path, Presence.UNKNOWN) for path in ("", "\0", "x\0y")),
]


@pytest.mark.every_case
@pytest.mark.parametrize(("links", "path", "expected"), PLACES)
def test_presence_of_a_path(init, links, path, expected):
    """A namespace is HERE at its path, ELSEWHERE if only process 1 has it, below its root directory, else GONE."""
    for name, target in links.items():
        link_for_init(init, name, target)
    assert get_presence(path) is expected


NO_MAC, MAC, APPTAINER = "00:00:00:00:00:00", "02:00:00:00:00:00", "/var/lib/apptainer/mnt/session/netns"
INTERFACE = socket.if_nameindex()[0][1]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("path", "interfaces", "expected"),
    [
        (APPTAINER, HostInterfaces(), Presence.UNKNOWN),
        (APPTAINER, HostInterfaces("lo"), Presence.ELSEWHERE),
        (APPTAINER, HostInterfaces("vethno", "lo", NO_MAC), Presence.GONE),
        (APPTAINER, HostInterfaces("vethno", "lo", MAC), Presence.UNKNOWN),
        ("/no/such/x", HostInterfaces(INTERFACE), Presence.ELSEWHERE),
        ("/no/such/x", HostInterfaces("no-such-veth"), Presence.GONE),
        ("/no/such/x", HostInterfaces("longer-than-any-name-of-an-interface"), Presence.GONE),
        ("/no/such/x", HostInterfaces("caf\u00e9"), Presence.GONE),
    ],
)
def test_host_interfaces_prove_more_than_a_path(init, path, interfaces, expected):
    """An attachment whose host veth exists is not GONE; one at a path that only its container sees needs its bridge."""
    assert get_presence(path, interfaces) is expected


def test_without_access_to_process_1_nothing_is_gone(init, monkeypatch):
    """If process 1 is hidden or not accessible, a missing path is no proof."""
    monkeypatch.setattr(presence_module, "INIT", "/no/such/process")
    assert get_presence("/no/such/x") is Presence.UNKNOWN


def test_process_1_of_a_container_proves_less(init, monkeypatch):
    """If process 1 is a container's, a path must be missing beside another attachment's namespace."""
    monkeypatch.setattr(presence_module, "_FIRST_PID_NAMESPACE", 0)
    assert presence_module.get_obstacle() != ""
    directory = init / "root" / "no" / "such"
    directory.mkdir(parents=True)
    (directory / "plain").touch()
    link_for_init(init, "/no/such/other")
    link_for_init(init, "/not/such/other")

    def presence_of(path, *others):
        return get_presence(path, others=lambda: others)

    assert presence_of("/no/such/x") is Presence.UNKNOWN  # the owner of the other namespace is unknown
    assert presence_of("/no/such/x", "/no/such/x", "/no/such/y", "/not/such/other") is Presence.UNKNOWN
    assert presence_of("/no/such/x", "/no/such/y", "/no/such/other") is Presence.GONE
    assert presence_of("/no/such/other", "/no/such/other") is Presence.ELSEWHERE
    # a mount that was not propagated to this mount namespace
    assert presence_of("/no/such/plain", "/no/such/other") is Presence.UNKNOWN


@pytest.mark.parametrize(
    ("bridge", "mac", "expected"),
    [
        ("lo", NO_MAC, Presence.GONE),
        ("lo", MAC, Presence.UNKNOWN),
        ("nosuch0", NO_MAC, Presence.UNKNOWN),
        ("", "", Presence.UNKNOWN),
    ],
)
def test_in_a_container_an_existing_bridge_without_the_veth_is_proof(init, monkeypatch, bridge, mac, expected):
    """In a container, an existing bridge of the attachment and a missing host veth are proof."""
    monkeypatch.setattr(presence_module, "_FIRST_PID_NAMESPACE", 0)
    assert get_presence("/no/such/x", HostInterfaces("nosuch1", bridge, mac)) is expected
