"""The configuration on stdin: JSON as runtimes write it, names, versions."""

import json
from typing import Any

import pytest

from tests.spec import configs

VERBS = ["ADD", "DEL", "CHECK", "GC", "STATUS"]

BAD_JSON = {
    "empty": b"",
    "blank": b" \n\t",
    "open object": b'{"name": "net"',
    "open string": b'{"name": "net',
    "bytes after the object": b'{"name": "net"} x',
    "two objects": b'{"name": "net"}{"name": "net"}',
    "list": b'[{"name": "net"}]',
    "string": b'"net"',
    "number": b"1",
    "true": b"true",
    "single quotes": b"{'name': 'net'}",
    "trailing comma": b'{"name": "net",}',
    "comment": b'{"name": "net"} // comment',
    "byte order mark": b'\xef\xbb\xbf{"name": "net"}',
    "not a number": b'{"name": "net", "mtu": NaN}',
    "infinity": b'{"name": "net", "mtu": -Infinity}',
    "leading zero": b'{"name": "net", "mtu": 01}',
    "raw newline": b'{"name": "n\net"}',
    "bad escape": b'{"name": "\\x"}',
    "nul": b'{"name": "net"}\0',
    "utf-16": '{"name": "net"}'.encode("utf-16"),
    "name is a number": b'{"name": 1}',
    "version is a number": b'{"name": "net", "cniVersion": 1.0}',
    "deep": b'{"name": "net", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("kind", BAD_JSON)
def test_invalid_json_is_rejected(refused, kind):
    """Input other than one JSON object with a text as name and version causes code 6."""
    error = refused("ADD", BAD_JSON[kind]).error()
    assert error["code"] == 6
    assert error["msg"].startswith("error unmarshall network config:")


@pytest.mark.parametrize("command", VERBS)
def test_every_verb_validates_its_configuration(refused, command):
    """Each verb rejects invalid JSON, and a configuration whose name is missing or invalid."""
    error = refused(command, b"{").error()
    assert error["code"] == 6
    for nameless in ({"name": None}, {"name": ""}):
        error = refused(command, refused.config(**nameless)).error()
        assert (error["code"], error["msg"]) == (7, "missing network name")
    error = refused(command, json.dumps({"cniVersion": "1.1.0", "name": None}).encode()).error()
    assert (error["code"], error["msg"]) == (7, "missing network name")
    for name in ("a b", "-a", "a/b", "å"):
        error = refused(command, refused.config(name=name)).error()
        assert (error["code"], error["msg"]) == (7, "invalid characters found in network name")
        assert error["details"] == name


@pytest.mark.parametrize("command", ["ADD", "DEL"])
@pytest.mark.parametrize("version", ["1.0", "2.0.0", "abc", "0.3", "1.1.0 ", "1.1.0.0"])
def test_versions_are_compared_as_text(refused, command, version):
    """A version that is not literally one of the plugin's causes code 1, with both in the details."""
    error = refused(command, refused.config(cniVersion=version)).error()
    assert (error["code"], error["msg"]) == (1, "incompatible CNI versions")
    supported = " ".join(f'"{known}"' for known in configs.versions(refused.plugin))
    assert error["details"] == f'config is "{version}", plugin supports [{supported}]'


@pytest.mark.parametrize(
    ("command", "version", "code", "msg"),
    [
        *(("CHECK", old, 1, "config version does not allow CHECK") for old in (None, "", "0.2.0", "0.3.1")),
        *(("GC", old, 1, "config version does not allow GC") for old in (None, "0.4.0", "1.0.0")),
        *(("STATUS", old, 1, "config version does not allow STATUS") for old in (None, "0.4.0", "1.0.0")),
        *((verb, "9.0.0", 1, f"plugin version does not allow {verb}") for verb in ("CHECK", "GC", "STATUS")),
        *((verb, "abc", 6, "") for verb in ("CHECK", "GC", "STATUS")),
    ],
)
def test_verbs_need_a_minimum_version(refused, command, version, code, msg):
    """CHECK needs a configuration of 0.4.0, GC and STATUS need 1.1.0; an invalid version is an error."""
    error = refused(command, refused.config(cniVersion=version)).error()
    assert error["code"] == code
    assert error["msg"].startswith(msg)


def test_missing_version_means_the_first_one(refused):
    """A missing cniVersion means 0.1.0, for plugins that support it."""
    outcome = refused("ADD", refused.config("0.1.0", cniVersion=None, name="net"))
    if "0.1.0" in configs.versions(refused.plugin):
        assert outcome.status == 0 or outcome.error()["code"] != 1
    else:
        assert outcome.error()["details"].startswith('config is "0.1.0", ')


def test_errors_carry_the_version(refused):
    """The error object contains the configuration's version."""
    for version in configs.versions(refused.plugin):
        assert refused("NOPE", refused.config(version)).error()["cniVersion"] == version


def test_errors_are_indented_like_results(refused):
    """An error object is indented by four spaces, with escaped markup, and nothing follows it."""
    stdout = refused("<&>").stdout.decode()
    assert (
        stdout
        == '{\n    "cniVersion": "1.1.0",\n    "code": 4,\n    "msg": "unknown CNI_COMMAND: \\u003c\\u0026\\u003e"\n}'
    )


def with_upper_case_keys(value):
    """Returns `value` with all keys in upper case, except sysctls, whose names are case-sensitive."""
    if isinstance(value, dict):
        return {key.upper(): item if key == "sysctl" else with_upper_case_keys(item) for key, item in value.items()}
    return [with_upper_case_keys(item) for item in value] if isinstance(value, list) else value


def test_json_is_parsed_as_go_parses_it(invoke):
    """Keys in another case, null, unknown keys, keys of the list and invalid UTF-8 fail no plugin."""
    unknown: dict[str, Any] = {
        "capabilities": {"portMappings": True},
        "x": [{}],
        "runtimeConfig": None,
        "mtu": None,
        "dns": None,
    }
    config = invoke.config(**unknown) | {"runtimeConfig": invoke.config().get("runtimeConfig")}
    text = (
        json.dumps(with_upper_case_keys(config)).encode()[:-1]
        + b', "y": "\xff\\ud800", "big": 1'
        + b"0" * 5000
        + b', "z": null}'
    )
    invoke("ADD", text).result()
    invoke("DEL", text).assert_silent()
