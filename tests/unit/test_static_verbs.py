"""static's verbs without a process: what CHECK compares, what DEL ignores, what STATUS says."""

from dataclasses import replace

import pytest

from cni.args import CmdArgs
from cni.errors import CniError
from ipam.static.main import PLUGIN
from tests.unit.test_host_local_conf import args, netconf

OWN = {"address": "10.1.2.5/24", "gateway": "10.1.2.1"}
V6 = {"address": "fd00::5/64"}
TEXT = "static: Failed to match addr 10.1.2.5 on interface eth0"


def check(present, addresses=(OWN, V6), env="", **keys):
    """Runs CHECK on a prevResult with the addresses `present`."""
    previous = {} if present is None else {"prevResult": {"cniVersion": "1.1.0", "ips": list(present)}}
    PLUGIN.cmd_check(args(env), netconf({"addresses": list(addresses)}, **previous, **keys))


def refusal(call, *given, **how) -> CniError:
    with pytest.raises(CniError) as caught:
        call(*given, **how)
    return caught.value


def test_what_was_given_is_found():
    """CHECK accepts what ADD gave, with gateways that bridge put in, and beside addresses of others."""
    check([OWN, V6])
    check([{"address": "10.9.9.9/8", "gateway": "10.0.0.1"}, {**V6, "gateway": "fd00::1"}, {**OWN, "interface": 2}])
    check([], addresses=[])
    check([{**OWN, "gateway": None}, OWN, V6])  # one of two is right


@pytest.mark.parametrize(
    ("present", "details"),
    [
        ([V6], "prevResult does not have 10.1.2.5/24"),
        ([{**OWN, "address": "10.1.2.5/16"}, V6], "prevResult has 10.1.2.5/16, the configuration 10.1.2.5/24"),
        ([{**OWN, "gateway": "10.1.2.2"}, V6], "prevResult has gateway 10.1.2.2, the configuration 10.1.2.1"),
        ([{"address": "10.1.2.5/24"}, V6], "prevResult has gateway none, the configuration 10.1.2.1"),
    ],
)
def test_what_was_given_differs(present, details):
    """CHECK tells of an address that is absent or has another prefix or gateway, in the reference's words."""
    error = refusal(check, present)
    assert (error.code, error.msg, error.details) == (999, TEXT, details)


def test_what_the_runtime_asked_for_is_demanded():
    """CHECK compares the runtime's addresses in place of the network's, and CNI_ARGS' beside them."""
    check([{"address": "10.1.2.9/24"}], runtimeConfig={"ips": ["10.1.2.9/24"]})
    assert "addr 10.1.2.9 " in refusal(check, [OWN, V6], runtimeConfig={"ips": ["10.1.2.9/24"]}).msg
    assert "addr 10.1.2.9 " in refusal(check, [OWN, V6], args={"cni": {"ips": ["10.1.2.9/24"]}}).msg
    assert "addr 10.1.2.9 " in refusal(check, [OWN, V6], env="IP=10.1.2.9/24").msg


def test_what_the_runtime_may_have_replaced_may_be_absent():
    """Where ADD may have had other addresses (capability `ips`), CHECK without them judges only what is there."""
    capability = {"capabilities": {"ips": True}}
    check([{"address": "10.1.2.9/24"}], **capability)
    assert refusal(check, [{**OWN, "gateway": "10.1.2.2"}], **capability).msg == TEXT
    asked = {"runtimeConfig": {"ips": ["10.1.2.9/24"]}}
    assert "addr 10.1.2.9 " in refusal(check, [OWN, V6], **capability, **asked).msg
    assert refusal(check, [{"address": "10.1.2.9/24"}], capabilities={"ips": False}).msg == TEXT


def test_check_needs_a_result():
    """CHECK without prevResult is refused in the reference's words, after a bad configuration."""
    assert (refusal(check, None).code, refusal(check, None).msg) == (7, "Required prevResult missing")
    assert refusal(check, None, env="FOO=1").code == 4


def test_del_reads_nothing():
    """DEL succeeds whatever the configuration is."""
    for ipam in (None, "x", {"addresses": "x"}):
        PLUGIN.cmd_del(replace(args("FOO"), netns=""), netconf(ipam))


@pytest.mark.parametrize("ipam", [None, "x", {"addresses": [{"address": "10.1.2.5"}]}, {"routes": [{}]}])
def test_status_of_a_broken_configuration(ipam):
    """STATUS of what ADD would refuse is code 50, with ADD's message and hint."""
    status = PLUGIN.cmd_status
    assert status
    added, told = (refusal(verb, args(), netconf(ipam)) for verb in (PLUGIN.cmd_add, status))
    assert (told.code, told.msg, told.details) == (50, added.msg, added.details)


def test_status_of_what_a_runtime_completes():
    """STATUS is ready where only the runtime knows the addresses, and knows nothing of a container's arguments."""
    own: CmdArgs = args("FOO")
    assert PLUGIN.cmd_status
    for ipam in ({}, {"addresses": []}, {"addresses": [OWN, V6]}):
        PLUGIN.cmd_status(own, netconf(ipam))
