"""The CNI_* variables: those that each verb needs, and their valid values."""

import pytest

from tests.spec import configs

NEEDED = {
    "ADD": ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
    "CHECK": ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
    "DEL": ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
    "GC": ["CNI_PATH"],
    "STATUS": ["CNI_PATH"],
}
ALL = ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH")
SPACED = [f"e{char}0" for char in "/: \t\n\u00a0"]
MAYBE = 'ARGS: error parsing value of pair ["IgnoreUnknown" "maybe"]'


@pytest.mark.parametrize("command", NEEDED)
def test_missing_variables_are_named(refused, command):
    """A missing or empty variable causes code 4 with its name; several are listed in the documented order."""
    for name in NEEDED[command]:
        for value in (None, ""):
            error = refused(command, env={name: value}).error()
            assert (error["code"], error["msg"]) == (4, f"required env variables [{name}] missing")
    error = refused(command, env=dict.fromkeys(ALL)).error()
    assert error["msg"] == f"required env variables [{','.join(NEEDED[command])}] missing"


@pytest.mark.parametrize("command", ["GC", "STATUS"])
def test_verbs_without_attachment_need_none(invoke, command):
    """GC and STATUS need no container, namespace or interface, and ignore the values of these variables."""
    for value in (None, "-/: "):
        invoke(command, env=dict.fromkeys(("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"), value)).assert_silent()


@pytest.mark.parametrize(
    "value", ["-cid", ".cid", "_", "c d", "c/d", "ï", "cïd", "cid\n", b"c\xffd".decode(errors="surrogateescape")]
)
@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
def test_bad_container_ids(refused, command, value):
    """A container ID with invalid characters causes code 4, even when other variables are missing."""
    for others in ({}, {"CNI_IFNAME": None, "CNI_PATH": None}):
        error = refused(command, container_id=value, env=others).error()
        assert (error["code"], error["msg"]) == (4, "invalid characters in containerID")
        assert error["details"] == value.replace("\udcff", "?")


@pytest.mark.parametrize(
    ("value", "msg", "details"),
    [
        ("e" * 16, "interface name is too long", "interface name should be less than 16 characters"),
        ("é" * 8, "interface name is too long", "interface name should be less than 16 characters"),
        (".", "interface name is . or ..", ""),
        ("..", "interface name is . or ..", ""),
        *((name, "interface name contains / or : or whitespace characters", name) for name in SPACED),
    ],
)
@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
def test_bad_interface_names(refused, command, value, msg, details):
    """An interface name that the kernel rejects causes code 4."""
    error = refused(command, ifname=value).error()
    assert (error["code"], error["msg"], error.get("details", "")) == (4, msg, details)


@pytest.mark.parametrize("command", ["NOPE", "GET", "add", "ADD "])
def test_unknown_commands(refused, command):
    """An unknown command causes code 4, but only when stdin contains a valid configuration."""
    error = refused(command).error()
    assert (error["code"], error["msg"]) == (4, f"unknown CNI_COMMAND: {command}")
    assert refused(command, b"{").error()["code"] == 6
    assert refused(command, refused.config(name=None)).error()["code"] == 7
    assert refused(command, env=dict.fromkeys(ALL)).error()["msg"] == f"unknown CNI_COMMAND: {command}"


@pytest.mark.parametrize(
    ("args", "msg"),
    [
        ("A", 'ARGS: invalid pair "A"'),
        ("A=b=c", 'ARGS: invalid pair "A=b=c"'),
        ("IgnoreUnknown=1;", 'ARGS: invalid pair ""'),
        ("FOO=1;BAR=2", 'ARGS: unknown args ["FOO=1" "BAR=2"]'),
        ("ignoreunknown=1", 'ARGS: unknown args ["ignoreunknown=1"]'),
        ("ip=10.1.2.50", 'ARGS: unknown args ["ip=10.1.2.50"]'),
        ("IgnoreUnknown=false;FOO=1", 'ARGS: unknown args ["FOO=1"]'),
        ("IgnoreUnknown=maybe", f"{MAYBE}: boolean unmarshal error: invalid input maybe"),
    ],
)
def test_invalid_cni_args_fail_the_plugins_that_read_them(invoke, args, msg):
    """An invalid CNI_ARGS fails the plugins that read it; the others ignore it."""
    outcome = invoke("ADD", args=args)
    if invoke.plugin in configs.READS_CNI_ARGS:
        error = outcome.error()
        assert error["code"] == 4
        assert error["msg"].removeprefix("failed to execute IPAM delegate: ").startswith(msg)  # vlan has this prefix
    else:
        outcome.result()


@pytest.mark.parametrize("args", ["A", "A=b=c", "IgnoreUnknown=1;", "FOO=1", "IgnoreUnknown=maybe"])
def test_invalid_cni_args_fail_no_del(invoke, args):
    """DEL succeeds with an invalid CNI_ARGS, with which ADD failed: the runtime could not remove the pod."""
    invoke("ADD").result()
    invoke("DEL", args=args).assert_silent()


@pytest.mark.parametrize("ignore", ["1", "true", "TRUE"])
def test_kubernetes_args_are_accepted(invoke, ignore):
    """The CNI_ARGS of a Kubernetes runtime fail no plugin, neither at ADD nor at DEL."""
    args = f"IgnoreUnknown={ignore};K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=1-2"
    invoke("ADD", args=args).result()
    invoke("DEL", args=args).assert_silent()
