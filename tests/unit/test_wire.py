"""Messages as bytes (kernel.wire): cases that the comparison with pyroute2's classes does not test."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.codec import LinkMessage, VlanMessage
from kernel.codec_netfilter import ConntrackMessage, RuleMessage
from kernel.codec_traffic import FilterMessage, QdiscMessage
from kernel.wire import AnswerError, decode

KINDS = (LinkMessage, VlanMessage, QdiscMessage, FilterMessage, RuleMessage, ConntrackMessage)
HEADER = 16


def attribute(number: int, content: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(content), number) + content + bytes(-len(content) % 4)


def link_message(*attributes: bytes) -> bytes:
    return bytes(HEADER) + bytes(16) + b"".join(attributes)


def test_an_unknown_attribute_is_ignored():
    """Unknown attributes in a message are ignored, with any content."""
    message = decode(LinkMessage, link_message(attribute(999, b"?" * 7), attribute(4, struct.pack("=I", 1400))))
    assert message["attrs"] == [("IFLA_MTU", 1400)]


def test_attributes_of_a_name():
    """`get_attr` returns the first of several attributes, None without one, `get_attrs` all; fields must exist."""
    message = decode(LinkMessage, link_message(*(attribute(4, struct.pack("=I", mtu)) for mtu in (1400, 1500))))
    assert (message.get_attr("IFLA_MTU"), message.get_attrs("IFLA_MTU")) == (1400, [1400, 1500])
    assert message.get_attr("IFLA_IFNAME") is None
    with pytest.raises(KeyError):
        message["nonsense"]


def test_a_nested_attribute_without_content_is_not_missing():
    """A nested attribute without attributes is not None and is true."""
    info = decode(LinkMessage, link_message(attribute(18, b""))).get_attr("IFLA_LINKINFO")
    assert info
    assert info.get_attr("IFLA_INFO_KIND") is None


def test_a_truncated_message_is_an_error():
    """A message shorter than its fixed fields raises AnswerError."""
    with pytest.raises(AnswerError):
        decode(LinkMessage, bytes(HEADER + 15))


@given(st.sampled_from(KINDS), st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(kind, data):
    """Any bytes are decoded completely or raise AnswerError, without an endless loop or another error."""

    def walk(message):
        for _, value in message["attrs"]:
            if isinstance(value, dict):
                walk(value)

    with contextlib.suppress(AnswerError):
        walk(decode(kind, data))
