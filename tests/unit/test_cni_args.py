"""The environment variables of a call (cni.args)."""

import pytest

from cni import args as cni_args
from tests.support.netconf import ENV


def test_values_are_passed_to_the_plugin():
    """The plugin gets the runtime's values; CNI_PATH is split, without empty parts."""
    args = cni_args.from_env(ENV | {"CNI_PATH": "/a::/b:", "CNI_ARGS": "IP=10.1.2.3"})
    assert (args.command, args.container_id, args.netns, args.ifname) == ("ADD", "cid", "/run/netns/pod", "eth0")
    assert (args.path, args.args, args.stdin) == (("/a", "/b"), "IP=10.1.2.3", b"")


@pytest.mark.parametrize(
    ("container_id", "ifname"),
    [("a", "e" * 15), ("0", "ä" * 7 + "e"), ("A-_.z", "..."), ("a" * 256, "a.b-c_d"), ("a" * 5000, "eth0")],
)
def test_valid_names_are_accepted(container_id, ifname):
    """Container IDs of letters, digits and -_. in any number, and interfaces of up to 15 bytes, are accepted."""
    args = cni_args.from_env(ENV | {"CNI_CONTAINERID": container_id, "CNI_IFNAME": ifname})
    assert (args.container_id, args.ifname) == (container_id, ifname)


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
