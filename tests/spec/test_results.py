"""Results of ADD: the form in each version, and the parts that come from prevResult."""

from typing import Any

import pytest

from tests.spec import configs

TOP = {
    "0.1": {"cniVersion", "ip4", "ip6", "dns"},
    "0.3": {"cniVersion", "interfaces", "ips", "routes", "dns"},
    "1": {"cniVersion", "interfaces", "ips", "routes", "dns"},
}
INTERFACE = {"0.3": {"name", "mac", "sandbox"}, "1": {"name", "mac", "mtu", "sandbox", "socketPath", "pciID"}}
IP = {"0.3": {"version", "interface", "address", "gateway"}, "1": {"interface", "address", "gateway"}}

PREV_RESULT: dict[str, Any] = {
    "interfaces": [
        {"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1400, "pciID": "0000:00:1f.6", "socketPath": "/run/sock"}
    ],
    "ips": [{"address": "10.1.2.5/24", "gateway": "10.1.2.1", "interface": 0}, {"address": "FD00:0::5/64"}],
    "routes": [
        {"dst": "0.0.0.0/0", "gw": "10.1.2.1", "mtu": 1300, "advmss": 1200, "priority": 5, "table": 0, "scope": 253},
        {"dst": "::ffff:10.0.0.0/104"},
    ],
    "dns": {"nameservers": ["10.1.2.1"], "domain": "local", "search": ["a"], "options": ["ndots:1"]},
}


def list_keys(value):
    """Yields the keys of every object in `value`, in order."""
    if isinstance(value, dict):
        yield list(value)
        for item in value.values():
            yield from list_keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from list_keys(item)


def test_form_of_each_version(invoke):
    """A result has the keys of the configuration's version, none of them empty, and is indented by four spaces."""
    for version in configs.versions(invoke.plugin):
        outcome = invoke("ADD", invoke.config(version))
        result, form = outcome.result(), "0.1" if version < "0.3" else "0.3" if version < "1" else "1"
        assert result["cniVersion"] == version
        assert result.keys() <= TOP[form]
        assert outcome.stdout.startswith(b'{\n    "cniVersion": "')
        for name in ("interfaces", "ips", "routes"):
            assert result.get(name, "absent")
        if form == "0.1":
            assert result.keys() & {"ip4", "ip6"}
            assert all(result[key].keys() <= {"ip", "gateway", "routes"} for key in result.keys() & {"ip4", "ip6"})
        else:
            assert all({"name"} <= item.keys() <= INTERFACE[form] for item in result.get("interfaces", []))
            assert all({"address"} <= item.keys() <= IP[form] for item in result.get("ips", []))
            assert all(item.get("version") in ("4", "6") for item in result.get("ips", []) if form == "0.3")
        if form == "1":
            assert all(keys == sorted(keys) for keys in list_keys(result))
        assert (result.get("dns") == {}) if form < "1" else ("dns" not in result)
        invoke("DEL", invoke.config(version)).assert_silent()


def test_missing_version_gives_the_first_one(invoke):
    """The result for a configuration without cniVersion has version 0.1.0."""
    if configs.versions(invoke.plugin)[0] == "0.1.0":
        assert invoke("ADD", invoke.config("0.1.0", cniVersion="")).result()["cniVersion"] == "0.1.0"


def add_with_prev_result(invoke, version, prev_result):
    config = configs.idle(invoke.plugin, version, invoke.store) | {"prevResult": prev_result}
    return invoke("ADD", config)


def test_prev_result_is_returned(invoke):
    """A plugin that changes nothing prints prevResult, with all attributes of interfaces and routes."""
    if invoke.plugin not in configs.RETURNS_PREV_RESULT:
        return
    expected = PREV_RESULT | {
        "ips": [PREV_RESULT["ips"][0], {"address": "fd00::5/64"}],
        "routes": [PREV_RESULT["routes"][0], {"dst": "10.0.0.0/8"}],
    }
    assert add_with_prev_result(invoke, "1.1.0", PREV_RESULT).result() == {"cniVersion": "1.1.0", **expected}
    invoke("DEL").assert_silent()
    old = add_with_prev_result(invoke, "0.4.0", PREV_RESULT).result()
    assert old["interfaces"] == [{"name": "eth0", "mac": "02:00:00:00:00:01"}]
    assert (old["routes"], old["dns"]) == (expected["routes"], expected["dns"])
    assert [ip["version"] for ip in old["ips"]] == ["4", "6"]


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
@pytest.mark.parametrize("prev_result", [{}, {"dns": {"nameservers": ["192.0.2.53"]}}])
def test_prev_result_without_addresses_is_returned(invoke, version, prev_result):
    """In the first versions, too, a plugin passes a prevResult without an address on; sbr needs addresses."""
    plugins = configs.RETURNS_PREV_RESULT - {"sbr"}
    if invoke.plugin in plugins and version in configs.versions(invoke.plugin):
        result = add_with_prev_result(invoke, version, prev_result).result()
        assert result == {"cniVersion": version, "dns": {}, **prev_result}


@pytest.mark.parametrize(("version", "other"), [("1.0.0", "0.4.0"), ("0.4.0", "1.0.0"), ("0.3.1", "0.2.0")])
def test_prev_result_of_another_form_is_rejected(invoke, version, other):
    """A prevResult whose version has another form than the configuration's is an error."""
    if invoke.plugin in configs.RETURNS_PREV_RESULT and version in configs.versions(invoke.plugin):
        error = add_with_prev_result(invoke, version, {"cniVersion": other}).error()
        assert error["code"] == 7
        assert "could not parse prevResult" in error["msg"]
