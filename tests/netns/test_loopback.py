"""The loopback plugin on a real kernel: it sets lo up and down, and checks it."""

from typing import Any

import pytest

from tests.spec import configs
from tests.support import netstate
from tests.support.invocation import run_plugin

CONFIG = {"cniVersion": "1.0.0", "name": "cni-loopback", "type": "loopback"}


@pytest.fixture
def loopback(bin_dir, host, sandbox):
    """Runs a verb of loopback in the sandbox, as containerd does."""

    def run(command, config=CONFIG, **how):
        return run_plugin("loopback", command, config, **{"host": host, "netns": sandbox, "ifname": "lo", **how})

    return run


def lo(sandbox):
    """Returns whether lo is up, and its addresses."""
    lo = netstate.links(sandbox)["lo"]
    return "UP" in lo["flags"], [f"{item['local']}/{item['prefixlen']}" for item in lo["addresses"]]


@pytest.mark.parametrize("version", configs.VERSIONS)
def test_lo_comes_up_and_goes_down(loopback, sandbox, version):
    """ADD sets lo up and DEL sets it down, in every version."""
    config = CONFIG | {"cniVersion": version}
    assert lo(sandbox) == (False, [])
    assert loopback("ADD", config).result()["cniVersion"] == version
    assert lo(sandbox) == (True, ["127.0.0.1/8", "::1/128"])
    loopback("DEL", config).assert_silent()
    assert not lo(sandbox)[0]


@pytest.mark.parametrize("version", ["0.2.0", "0.4.0", "1.1.0"])
def test_result_has_the_format_of_its_version(loopback, sandbox, version):
    """The result is lo with its two addresses, in the format of the requested version."""
    addresses, lo = {"4": "127.0.0.1/8", "6": "::1/128"}, {"name": "lo", "mac": "00:00:00:00:00:00"}
    ips = [{"interface": 0, "address": address} for address in addresses.values()]
    old_ips = [{**ip, "version": number} for number, ip in zip(addresses, ips, strict=True)]
    shapes: dict[str, dict[str, Any]] = {
        "0.2.0": {**{f"ip{number}": {"ip": address} for number, address in addresses.items()}, "dns": {}},
        "0.4.0": {"interfaces": [{**lo, "sandbox": sandbox.path}], "ips": old_ips, "dns": {}},
        "1.1.0": {"interfaces": [{**lo, "mtu": 65536, "sandbox": sandbox.path}], "ips": ips},
    }
    assert loopback("ADD", CONFIG | {"cniVersion": version}).result() == {"cniVersion": version, **shapes[version]}


def test_result_equals_the_references(loopback, reference):
    """The 1.0.0 result equals the Go plugin's, except for the empty dns that its old releases print."""
    reference_result = loopback("ADD", bin_dir=reference).result()
    loopback("DEL").assert_silent()
    assert {"dns": {}} | loopback("ADD").result() == {"dns": {}} | reference_result


def test_prev_result_is_returned(loopback, sandbox):
    """ADD sets lo up and prints prevResult unchanged."""
    earlier = {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": sandbox.path}]}
    assert loopback("ADD", CONFIG | {"prevResult": earlier}).result() == earlier
    assert lo(sandbox)[0]


def test_without_ipv6_there_is_one_address(loopback, sandbox):
    """In a sandbox without IPv6 the result has only the IPv4 address."""
    for interface in ("all", "default", "lo"):
        sandbox.set_sysctl(f"net/ipv6/conf/{interface}/disable_ipv6", "1")
    assert loopback("ADD").result()["ips"] == [{"address": "127.0.0.1/8", "interface": 0}]


def test_second_add_changes_nothing(loopback, sandbox):
    """A second ADD has the same result."""
    first = loopback("ADD").result()
    before = netstate.state(sandbox)
    assert loopback("ADD").result() == first
    assert netstate.state(sandbox) == before


def test_check_reports_lo_down(loopback, sandbox):
    """CHECK succeeds if lo is up, with and without prevResult, and fails if it is down."""
    result = loopback("ADD").result()
    loopback("CHECK").assert_silent()
    loopback("CHECK", CONFIG | {"prevResult": result}).assert_silent()
    sandbox.ip("link", "set", "lo", "down")
    error = loopback("CHECK").error()
    assert (error["code"], error["msg"]) == (999, "loopback interface is down")


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize("address", ["10.9.9.9/32", "fd00::9/128"])
def test_non_loopback_address_is_refused(loopback, sandbox, address, up):
    """ADD fails if lo has another address than loopback ones, and leaves lo as it was."""
    if up:
        sandbox.ip("link", "set", "lo", "up")
    sandbox.ip("address", "add", address, "dev", "lo")
    error = loopback("ADD").error()
    assert error["msg"] == f'loopback interface found with non-loopback address "{address}"'
    assert lo(sandbox)[0] == up
