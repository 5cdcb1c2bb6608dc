"""The input of a call: environment variables (cni.args), versions (cni.versions), and the configuration (cni.conf)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni import args as cni_args
from cni import conf, versions
from cni.conf import Attachment
from cni.errors import CniError
from cni.result import Result
from tests.support.errors import error_of, failure_of
from tests.support.netconf import ENV


def parse(**keys):
    return conf.parse(json.dumps({"name": "net", **keys}).encode())


def failure(stdin):
    return error_of(lambda: conf.parse(stdin), CniError)


def test_input_without_a_valid_name_is_refused():
    """The value null has no name, and a lone surrogate is no character of a name."""
    missing, invalid = failure(b"null"), failure(b'{"name": "\\ud800"}')
    assert (missing.code, missing.msg) == (7, "missing network name")
    assert (invalid.code, invalid.msg) == (7, "invalid characters found in network name")


def test_absent_version_is_0_1_0():
    """Without cniVersion, or with an empty one, a configuration has version 0.1.0."""
    for keys in ({}, {"cniVersion": ""}, {"cniVersion": None}):
        assert (parse(**keys).cni_version, parse(**keys).version) == ("", "0.1.0")
    assert parse(CNIVERSION="1.0.0").version == "1.0.0"


def test_common_keys_match_in_any_case():
    """The runtime's keys are read in containerd's spelling; capabilities and unknown keys are ignored."""
    request = parse(
        RuntimeConfig={"MAC": "x"}, Args={"CNI": {"IPs": ["10.1.2.3"]}}, capabilities={"ips": True}, unknown=[{}]
    )
    assert request.runtime_config.string("mac") == "x"
    assert request.cni_args.strings("ips") == ("10.1.2.3",)
    assert parse().runtime_config.raw("mac") is None


def test_prev_result_has_the_configurations_version():
    """A prevResult without cniVersion, or with an empty one, has the configuration's version."""
    for prev_result in ({}, {"cniVersion": ""}, {"cniVersion": "1.0.0"}):
        assert parse(cniVersion="1.1.0", prevResult=prev_result).prev_result() == Result()
    assert parse(cniVersion="1.1.0").prev_result() is None
    assert parse(cniVersion="1.1.0", prevResult=None).prev_result() is None


@pytest.mark.parametrize(
    "prev_result",
    [{"cniVersion": "0.4.0"}, {"cniVersion": "9.9.9"}, {"ips": [{}]}, {"ips": 5}, {"interfaces": [{"mtu": "x"}]}, 5],
)
def test_prev_result_of_another_family_or_shape_is_refused(prev_result):
    """The message says that prevResult is invalid."""
    request = parse(cniVersion="1.0.0", prevResult=prev_result)
    with pytest.raises(CniError, match=r"^could not parse prevResult: ") as caught:
        request.prev_result()
    assert caught.value.code == 7


ONE = [{"containerID": "a", "ifname": "eth0"}]
TWO = [{"ContainerID": "b", "IfName": "eth1"}, {"containerID": "c", "ifname": "eth0"}]


@pytest.mark.parametrize(
    ("keys", "attachments"),
    [
        ({}, None),
        ({"cni.dev/valid-attachments": None}, set()),
        ({"cni.dev/valid-attachments": []}, set()),
        ({"cni.dev/valid-attachments": ONE}, {("a", "eth0")}),
        ({"cni.dev/attachments": TWO}, {("b", "eth1"), ("c", "eth0")}),
        ({"cni.dev/attachments": TWO, "cni.dev/valid-attachments": ONE}, {("a", "eth0")}),
        ({"cni.dev/attachments": TWO, "cni.dev/valid-attachments": None}, set()),
    ],
)
def test_gc_lists_are_parsed(keys, attachments):
    """GC keeps the listed attachments: null is an empty list, and without a key nothing may be removed."""
    valid = parse(**keys).valid_attachments()
    assert valid == (None if attachments is None else {Attachment(*item) for item in attachments})


@pytest.mark.parametrize("element", [None, {}, {"containerID": "", "ifname": "eth0"}, {"containerID": "b"}])
def test_attachment_without_a_name_is_refused(element):
    """An element without a container ID or an interface is an error, since GC would release addresses in use."""
    keys = {"cni.dev/valid-attachments": [*ONE, element]}
    assert error_of(parse(**keys).valid_attachments, CniError).code == 7


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", (0, 1, 0)), ("1", (1, 0, 0)), ("1.0", (1, 0, 0)), ("0.4.0", (0, 4, 0)), ("10.20.30", (10, 20, 30))],
)
def test_versions_have_one_to_three_numbers(text, numbers):
    """A version has one to three numbers; an empty one is 0.1.0."""
    assert versions.parse(text) == numbers


@pytest.mark.parametrize("text", ["abc", "1.", "1..0", "1.0.0.0", "1.0.x", " 1", "1.0.0\n", "-1", "²", "1" * 5000])
def test_invalid_versions_are_refused(text):
    """Any other text is a ValueError."""
    with pytest.raises(ValueError, match="version"):
        versions.parse(text)


def test_versions_are_ordered_by_number():
    """0.10 is later than 0.9, and the supported versions are in order."""
    assert versions.at_least("0.10.0", "0.9.0")
    assert not versions.at_least("0.3.1", "0.4.0")
    assert list(versions.SUPPORTED) == sorted(versions.SUPPORTED, key=versions.parse)


def test_every_supported_version_has_a_family():
    """Each supported version, and no other, belongs to one of the three shapes of results."""
    assert tuple(name for names in versions.FAMILIES for name in names if name) == versions.SUPPORTED
    assert versions.family("2.0.0") is None
    assert versions.family("") == versions.family("0.2.0")


@given(st.text() | st.text(alphabet="0123456789."))
def test_any_text_is_a_version_or_a_value_error(text):
    """No text causes another exception in the parser."""
    error = failure_of(lambda: versions.parse(text), ValueError)
    assert error is None or "version" in str(error)


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
