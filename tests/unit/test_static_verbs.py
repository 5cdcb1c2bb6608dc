"""static's verbs without a process: the comparisons of CHECK, DEL with any configuration, and STATUS."""

from functools import partial
from typing import Any

import pytest

from cni.errors import CniError
from ipam.static.main import PLUGIN
from tests.support.errors import error_of
from tests.support.netconf import arguments, netconf

ADDRESS = {"address": "10.1.2.5/24", "gateway": "10.1.2.1"}
V6 = {"address": "fd00::5/64"}
TEXT = "static: Failed to match addr 10.1.2.5 on interface eth0"


def check(existing, addresses=(ADDRESS, V6), env="", **keys):
    """Runs CHECK with a prevResult that has the `existing` addresses."""
    previous = {} if existing is None else {"prevResult": {"cniVersion": "1.1.0", "ips": list(existing)}}
    conf = netconf("static", {"ipam": {"addresses": list(addresses)}, **previous, **keys})
    PLUGIN.cmd_check(arguments(CNI_ARGS=env), conf)


def refusal(call, *args, **options) -> CniError:
    return error_of(partial(call, *args, **options), CniError)


def test_check_accepts_the_addresses_of_add():
    """CHECK accepts the addresses of ADD, with gateways that bridge added, and besides other addresses."""
    check([ADDRESS, V6])
    check([{"address": "10.9.9.9/8", "gateway": "10.0.0.1"}, {**V6, "gateway": "fd00::1"}, {**ADDRESS, "interface": 2}])
    check([], addresses=[])
    check([{**ADDRESS, "gateway": None}, ADDRESS, V6])  # one of two is right


@pytest.mark.parametrize(
    ("existing", "details"),
    [
        ([V6], "prevResult does not have 10.1.2.5/24"),
        ([{**ADDRESS, "address": "10.1.2.5/16"}, V6], "prevResult has 10.1.2.5/16, the configuration 10.1.2.5/24"),
        ([{**ADDRESS, "gateway": "10.1.2.2"}, V6], "prevResult has gateway 10.1.2.2, the configuration 10.1.2.1"),
        ([{"address": "10.1.2.5/24"}, V6], "prevResult has gateway none, the configuration 10.1.2.1"),
    ],
)
def test_check_reports_differences(existing, details):
    """CHECK reports an address that is missing or has another prefix length or gateway, with the reference's text."""
    error = refusal(check, existing)
    assert (error.code, error.msg, error.details) == (999, TEXT, details)


def test_check_requires_the_requested_addresses():
    """CHECK compares the runtime's addresses instead of the network's, and those of CNI_ARGS in addition."""
    check([{"address": "10.1.2.9/24"}], runtimeConfig={"ips": ["10.1.2.9/24"]})
    assert "addr 10.1.2.9 " in refusal(check, [ADDRESS, V6], runtimeConfig={"ips": ["10.1.2.9/24"]}).msg
    assert "addr 10.1.2.9 " in refusal(check, [ADDRESS, V6], args={"cni": {"ips": ["10.1.2.9/24"]}}).msg
    assert "addr 10.1.2.9 " in refusal(check, [ADDRESS, V6], env="IP=10.1.2.9/24").msg


def test_replaceable_addresses_may_be_absent():
    """With the capability `ips` ADD may have had other addresses, so CHECK compares only existing ones."""
    capability: dict[str, Any] = {"capabilities": {"ips": True}}
    check([{"address": "10.1.2.9/24"}], **capability)
    assert refusal(check, [{**ADDRESS, "gateway": "10.1.2.2"}], **capability).msg == TEXT
    requested: dict[str, Any] = {"runtimeConfig": {"ips": ["10.1.2.9/24"]}}
    assert "addr 10.1.2.9 " in refusal(check, [ADDRESS, V6], **capability, **requested).msg
    assert refusal(check, [{"address": "10.1.2.9/24"}], capabilities={"ips": False}).msg == TEXT


@pytest.mark.parametrize("ipam", [None, "x", {"addresses": [{"address": "10.1.2.5"}]}, {"routes": [{}]}])
def test_status_of_an_invalid_configuration(ipam):
    """STATUS of a configuration that ADD refuses has code 50, with the message and details of ADD."""
    status = PLUGIN.cmd_status
    assert status
    conf = netconf("static", {"ipam": ipam})
    add_error, status_error = (refusal(verb, arguments(), conf) for verb in (PLUGIN.cmd_add, status))
    assert (status_error.code, status_error.msg, status_error.details) == (50, add_error.msg, add_error.details)


def test_status_accepts_a_configuration_for_the_runtime():
    """STATUS succeeds if only the runtime has addresses, and does not read CNI_ARGS."""
    assert PLUGIN.cmd_status
    sections: list[dict[str, Any]] = [{}, {"addresses": []}, {"addresses": [ADDRESS, V6]}]
    for ipam in sections:
        PLUGIN.cmd_status(arguments(CNI_ARGS="FOO"), netconf("static", {"ipam": ipam}))
