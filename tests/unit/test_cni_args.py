"""The environment variables of a call (cni.args)."""

import pytest

from cni import args as cni_args
from cni.errors import CniError
from tests.support.errors import error_of
from tests.support.netconf import ENV


def failure(env):
    error = error_of(lambda: cni_args.from_env(env), CniError)
    assert error.code == 4
    return error


def test_values_are_passed_to_the_plugin():
    """The plugin gets the runtime's values; CNI_PATH is split, without empty parts."""
    args = cni_args.from_env(ENV | {"CNI_PATH": "/a::/b:", "CNI_ARGS": "IP=10.1.2.3"})
    assert (args.command, args.container_id, args.netns, args.ifname) == ("ADD", "cid", "/run/netns/pod", "eth0")
    assert (args.path, args.args, args.stdin) == (("/a", "/b"), "IP=10.1.2.3", b"")


@pytest.mark.parametrize("value", ["-a", ".a", "a b", "a/b", "ä", "aä", "a\n", "a\udc80", "_"])
def test_container_ids_with_invalid_characters_are_refused(value):
    """The details repeat the ID, and this error precedes that of missing variables."""
    error = failure({"CNI_COMMAND": "ADD", "CNI_CONTAINERID": value})
    assert (error.msg, error.details) == ("invalid characters in containerID", value)


@pytest.mark.parametrize(
    ("container_id", "ifname"),
    [("a", "e" * 15), ("0", "ä" * 7 + "e"), ("A-_.z", "..."), ("a" * 256, "a.b-c_d"), ("a" * 5000, "eth0")],
)
def test_valid_names_are_accepted(container_id, ifname):
    """Container IDs of letters, digits and -_. in any number, and interfaces of up to 15 bytes, are accepted."""
    args = cni_args.from_env(ENV | {"CNI_CONTAINERID": container_id, "CNI_IFNAME": ifname})
    assert (args.container_id, args.ifname) == (container_id, ifname)


LONG = ("interface name is too long", "interface name should be less than 16 characters")
DOTS = ("interface name is . or ..", "")
CHARS = "interface name contains / or : or whitespace characters"


@pytest.mark.parametrize(
    ("value", "msg", "details"),
    [
        ("e" * 16, *LONG),
        ("ä" * 8, *LONG),
        (".", *DOTS),
        ("..", *DOTS),
        *((value, CHARS, value) for value in ("a/b", "a:b", "a b", "a\tb", "a\u00a0b", "a\n")),
    ],
)
def test_invalid_interface_names_are_refused(value, msg, details):
    """A name that no interface can have is refused before the verb runs."""
    for command in ("ADD", "DEL", "CHECK"):
        error = failure(ENV | {"CNI_COMMAND": command, "CNI_IFNAME": value})
        assert (error.msg, error.details) == (msg, details)
    for command in ("GC", "STATUS", "VERSION"):
        assert cni_args.from_env(ENV | {"CNI_COMMAND": command, "CNI_IFNAME": value})


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", {}),
        ("IP=10.1.2.3", {"IP": "10.1.2.3"}),
        ("IP=", {"IP": ""}),
        ("IP=a;IP=b", {"IP": "b"}),
        ("IgnoreUnknown=1;K8S_POD_NAME=x;IP=a", {"IP": "a"}),
        ("K8S_POD_NAME=x;IgnoreUnknown=TRUE", {}),
        ("ip=a;IgnoreUnknown=true", {}),
        ("IgnoreUnknown=0;IP=a", {"IP": "a"}),
    ],
)
def test_known_cni_args_are_returned(text, pairs):
    """CNI_ARGS returns the known keys; IgnoreUnknown, in any place, permits others."""
    assert cni_args.from_env(ENV | {"CNI_ARGS": text}).cni_args("IP") == pairs


@pytest.mark.parametrize(
    ("text", "msg"),
    [
        ("FOO=1;IP=a;BAR=2", 'ARGS: unknown args ["FOO=1" "BAR=2"]'),
        ("ignoreunknown=1", 'ARGS: unknown args ["ignoreunknown=1"]'),
        (
            "IgnoreUnknown=maybe",
            'ARGS: error parsing value of pair ["IgnoreUnknown" "maybe"]: boolean unmarshal error: invalid input maybe',
        ),
    ],
)
def test_invalid_cni_args_are_refused(text, msg):
    """Malformed pairs and unknown keys have the reference's texts and code 4."""
    args = cni_args.from_env(ENV | {"CNI_ARGS": text})
    error = error_of(lambda: args.cni_args("IP"), CniError)
    assert (error.code, error.msg) == (4, msg)
