"""Policy rules: a rule with any condition besides its source belongs to another program."""

import ipaddress

import pytest

from kernel import rule
from kernel.codec_routing import FibRuleMessage
from kernel.rule import PolicyRule
from kernel.wire import decode, encode
from tests.unit.test_codec import FULL_CLASSES

SOURCE = ipaddress.ip_address("10.1.0.2")


def rule_with(fields=None, attributes=()):
    """Returns the rule "from 10.1.0.2 lookup 100" as kernel.rule reads it, with further fields and attributes."""
    message = FULL_CLASSES[FibRuleMessage]()
    message["header"].update({"type": rule.RTM_NEWRULE, "flags": 0, "sequence_number": 1})
    message.update({"family": 2, "src_len": 32, "table": 100, "action": 1, **(fields or {})})
    plain = [("FRA_SRC", str(SOURCE)), ("FRA_PRIORITY", 32765), ("FRA_SUPPRESS_PREFIXLEN", 0xFFFFFFFF)]
    message["attrs"] = [*plain, ("FRA_TABLE", 100), ("FRA_PROTOCOL", 0), *attributes]
    message.encode()
    return rule.from_message(decode(FibRuleMessage, bytes(message.data)))


@pytest.mark.parametrize(
    ("fields", "attributes"),
    [
        ({"tos": 16}, ()),
        ({"dst_len": 8}, (("FRA_DST", "10.0.0.0"),)),
        ({"src_len": 24}, ()),
        ({"flags": 2}, ()),
        ({"action": 6}, ()),
        ({}, (("FRA_FWMARK", 1),)),
        ({}, (("FRA_IIFNAME", "eth0"),)),
        ({}, (("FRA_OIFNAME", "eth0"),)),
        ({}, (("FRA_L3MDEV", 1),)),
        ({}, (("FRA_IP_PROTO", 6),)),
        ({}, (("FRA_SUPPRESS_IFGROUP", 1),)),
    ],
)
def test_rule_with_a_condition(fields, attributes):
    """A rule with a further condition, or another action, has no source and keeps its table."""
    is_l3mdev = ("FRA_L3MDEV", 1) in attributes
    assert rule_with(fields, attributes) == PolicyRule(4, b"", 100, 32765, is_l3mdev)


def test_rules_of_multicast_routing_are_not_listed():
    """Of all rules that the kernel lists, those of IPv4 and IPv6 count, and not multicast routing's (128, 129)."""
    is_listed = rule.list_request().body_filter or bool
    values = {family: {"family": family, "table": 253, "action": 1} for family in (2, 10, 128, 129)}
    bodies = {key: encode(FibRuleMessage, (rule.RTM_NEWRULE, 0, 1), each, ()) for key, each in values.items()}
    assert [family for family, body in bodies.items() if is_listed(body)] == [2, 10]


def test_rule_with_an_unknown_attribute():
    """An attribute that kernel.rule does not know, of a newer kernel, counts as a condition."""
    request = rule.add_request(SOURCE, 100)
    data = encode(FibRuleMessage, (rule.RTM_NEWRULE, 0, 1), request.values, request.attributes)
    assert rule.from_message(decode(FibRuleMessage, data)).source == SOURCE.packed
    unknown = bytes.fromhex("08001e0001000000")  # attribute 30
    assert rule.from_message(decode(FibRuleMessage, data + unknown)).source == b""
