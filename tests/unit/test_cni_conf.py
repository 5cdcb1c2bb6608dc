"""The keys common to every configuration (cni.conf)."""

import json

import pytest

from cni import conf
from cni.conf import Attachment
from cni.errors import CniError
from cni.result import Result
from tests.support.errors import error_of


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
