"""DHCPv4 options (ipam.dhcp.options): names in configurations, and values that servers send."""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface

import pytest
from scapy.layers.dhcp import DHCPOptions, DHCPRevOptions

from cni.result import DNS, Route
from ipam.dhcp import options
from ipam.dhcp.options import INFINITE_S, LeaseTimes
from ipam.dhcp.packet import Malformed

ROUTER = IPv4Address("192.0.2.1")
PARSE = "Can not parse option {0}: Can not parse option: strconv.ParseUint: parsing {0}: {1}"
SYNTAX, RANGE = "invalid syntax", "value out of range"


def route(destination, router=ROUTER, **values):
    return Route(IPv4Interface(destination), router, **values)


def seconds(value):
    return value.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("dhcp-client-identifier", 61), ("subnet-mask", 1), ("routers", 3), ("host-name", 12), ("user-class", 77)),
        *(("vendor-class-identifier", 60), ("domain-name-servers", 6), ("domain-name", 15), ("domain-search", 119)),
        *(("interface-mtu", 26), ("classless-static-routes", 121), ("static-routes", 33), ("ntp-servers", 42)),
        *(("0", 0), ("7", 7), ("255", 255), ("007", 7), ("0000000000255", 255)),
    ],
)
def test_option_number(text, number):
    """Options have the names of the reference plugin, further names, and numbers from 0 to 255."""
    assert options.option_number(text) == number


@pytest.mark.parametrize(
    ("text", "quoted", "problem"),
    [
        *((text, f'"{text}"', SYNTAX) for text in ("foo", "", "Routers", "ip-address-lease-time", "-1", "+1", " 1")),
        *((text, f'"{text}"', SYNTAX) for text in ("1_0", "0x1", "\u0661", "25x")),
        *((text, f'"{text}"', RANGE) for text in ("256", "256x", "9" * 5000)),
        ('a"\\\n\x01\x7f', r'"a\"\\\n\x01\x7f"', SYNTAX),
        ("\u00e9\u2028\U000e0001", '"\u00e9\\u2028\\U000e0001"', SYNTAX),
    ],
)
def test_unknown_option(text, quoted, problem):
    """The text for an unknown option is the reference plugin's, with Go's error and quotation."""
    with pytest.raises(ValueError, match="Can not") as error:
        options.option_number(text)
    assert str(error.value) == PARSE.format(quoted, problem)


def test_numbers_are_those_of_scapy():
    """The numbers of options are those in scapy's table."""
    pairs = (
        "SUBNET_MASK=subnet_mask ROUTERS=router DNS_SERVERS=name_server HOST_NAME=hostname DOMAIN_NAME=domain "
        "INTERFACE_MTU=interface-mtu STATIC_ROUTES=static-routes NTP_SERVERS=NTP_server LEASE_TIME=lease_time "
        "REQUESTED_ADDRESS=requested_addr SERVER_ID=server_id PARAMETER_REQUEST_LIST=param_req_list "
        "MESSAGE=error_message MAX_MESSAGE_SIZE=max_dhcp_size RENEWAL_TIME=renewal_time USER_CLASS=user_class "
        "REBINDING_TIME=rebinding_time VENDOR_CLASS=vendor_class_id CLIENT_ID=client_id "
        "CLASSLESS_ROUTES=classless_static_routes"
    )
    names = dict(pair.split("=") for pair in pairs.split())
    known = {name: entry[0] if isinstance(entry, tuple) else entry for name, entry in DHCPRevOptions.items()}
    assert len(DHCPOptions) > len(names)
    assert {name: getattr(options, name) for name in names} == {name: known[other] for name, other in names.items()}


# RFC 3397, section 2: "eng.apple.com." and "marketing.apple.com.", whose end is a pointer to "apple.com.".
RFC3397 = b"\3eng\5apple\3com\0\tmarketing\xc0\4"
APPLE, VIA = ("eng.apple.com", "marketing.apple.com"), ROUTER.packed
# A long chain of pointers, each to the one before it.
CHAIN = b"\1a\0\xc0\0" + b"".join((0xC000 + at).to_bytes(2, "big") for at in range(3, 900, 2))
# By reader: the number of the option, the value of an absent one, contents and values.
VALUES: dict[Callable[[dict[int, bytes]], object], tuple[int, object, list[tuple[bytes, object]]]] = {
    # The prefix length is the number of ones in the mask.
    options.subnet_prefix: (
        *(1, None),
        [(b"\xff" * 4, 32), (b"\xff\xff\xff\0", 24), (b"\xff\xff\xfc\0", 22), (b"\x80\0\0\0", 1), (bytes(4), 0)],
    ),
    # The type of a message is one byte.
    options.message_type: (53, None, [(b"\5", options.ACK), (b"", None), (b"\5\5", None)]),
    # An MTU below 576 or of the wrong length is ignored.
    options.interface_mtu: (
        *(26, 0),
        [(b"\5\xdc", 1500), (b"\2\x40", 576), (b"\2\x3f", 0), (b"", 0), (b"\1", 0), (b"\0\5\xdc", 0)],
    ),
    # The server's message has no control characters and at most 255 characters.
    options.message_text: (
        *(56, ""),
        [
            *((b"no lease", "no lease"), (b"no lease\0\0", "no lease"), (b"a\nb\x1b[31m\0c", "a?b?[31m?c"), (b"", "")),
            *(("k\u00e4se".encode(), "k\u00e4se"), (b"\xff", "\ufffd"), ("\u202e".encode(), "?")),
            (b"x" * 1000, "x" * 255),
        ],
    ),
    # The domain is a valid name, since it is written to resolv.conf.
    options.domain_name: (
        *(15, ""),
        [
            *(
                (b"example.org", "example.org"),
                (b"example.org.\0", "example.org"),
                (b"a.example b.example", "a.example"),
            ),
            *((b"_dc.example-1.org", "_dc.example-1.org"), (b"a\nnameserver 192.0.2.66", "a")),
            *((b"x" * 63, "x" * 63), (b"x" * 64, ""), (b".".join([b"x" * 62] * 5), "")),
            *(
                (content, "")
                for content in (b"", b" ", b"\0", b".", b"a..b", b".a", b"-a", b"a-", b"a;b", b"\xe9", b"a\0b")
            ),
        ],
    ),
    # Search domains may be compressed by pointers backwards, also in several parts; one mistake spoils all of them.
    options.domain_search: (
        *(119, ()),
        [
            *((RFC3397, APPLE), (RFC3397 + b"\xc0\0\xc0\x0f", APPLE * 2), (b"\1a\0\1b\0", ("a", "b")), (b"", ())),
            (b"\1a\0" + b"\1b\xc0\0" + b"\1c\xc0\3", ("a", "b.a", "c.b.a")),
            *(
                (b"\1a\0" + end, ())
                for end in (b"\1", b"\1b", b"\1b\xc0", b"\xc0", b"\0", b"\1.\0", b"\1\n\0", b"\x40\0")
            ),
            *((b"\1a\0" + end, ()) for end in (b"\xc0\3", b"\1b\xc0\3", b"\1b\xc0\5", b"\xc0\x09", b"\xff\xff")),
            *(
                (b"\xc0\0", ()),
                (b"\1a\xc0\0", ()),
                (b"\1a\1b\xc0\0\xc0\2", ()),
                ((b"\x3f" + b"x" * 63) * 4 + b"\0", ()),
            ),
            *((b"\1a" * 127 + b"\0", (".".join("a" * 127),)), (b"\1a" * 128 + b"\0", ())),
            (b"\1a\0" + b"".join((0xC000 + n).to_bytes(2, "big") for n in range(3, 600, 2)), ()),
            *((content, ("a",) * 64) for content in (b"\1a\0" * 100, CHAIN, CHAIN[:900] + b"\1b\xc3\x20")),
        ],
    ),
    # Option 121 has routes with masks, whose host bits are cut; one malformed route spoils the option.
    options.classless_routes: (
        *(121, None),
        [
            *((b"\0" + VIA, (route("0.0.0.0/0"),)), (b"\x08\x0a" + VIA, (route("10.0.0.0/8"),))),
            (b"\x16\x0a\1\7" + VIA, (route("10.1.4.0/22"),)),
            (b"\x18\x0a\1\2" + VIA + b"\x20\xc0\0\2\5" + VIA, (route("10.1.2.0/24"), route("192.0.2.5/32"))),
            (b"\x18\x0a\1\2" + bytes(4), (route("10.1.2.0/24", IPv4Address(0), scope=253),)),
            (b"\x08\x0a\xe0\0\0\1" + b"\x08\x0b" + VIA, (route("11.0.0.0/8"),)),
            *((content, None) for content in (b"", b"\0", b"\0\1\2\3", b"\x08" + VIA, b"\xff" + VIA)),
            *((b"\x21\0\0\0\0\0" + VIA, None), (b"\0" + VIA + b"\x18\x0a", None)),
        ],
    ),
}
CASES = [
    pytest.param(read, {number: content}, expected, id=f"{read.__name__}-{content[:20].hex()}")
    for read, (number, _, values) in VALUES.items()
    for content, expected in values
]


@pytest.mark.parametrize(("read", "sent", "expected"), CASES)
def test_value_of_an_option(read, sent, expected):
    """The value of an option is used only if it is valid, and can do no harm where it is printed or stored."""
    assert read(sent) == expected
    assert read({}) == VALUES[read][1]


@pytest.mark.parametrize(
    ("lease", "renewal", "rebinding", "expected"),
    [
        (None, None, None, (3600.0, 1800.0, 3060.0)),
        (100, None, None, (100.0, 50.0, 85.0)),
        (1, None, None, (1.0, 0.5, 0.85)),
        (100, 10, 20, (100.0, 10.0, 20.0)),
        (100, 10, None, (100.0, 10.0, 85.0)),
        (100, None, 90, (100.0, 50.0, 90.0)),
        (100, 100, 100, (100.0, 100.0, 100.0)),
        (100, 20, 10, (100.0, 50.0, 85.0)),
        (100, 90, None, (100.0, 50.0, 85.0)),
        (100, 10, 101, (100.0, 50.0, 85.0)),
        (100, 0, 0, (100.0, 50.0, 85.0)),
        (100, 0xFFFFFFFF, 0xFFFFFFFF, (100.0, 50.0, 85.0)),
        (0xFFFFFFFE, None, None, (4294967294.0, 2147483647.0, 0.85 * 4294967294)),
        (0xFFFFFFFF, None, None, (INFINITE_S, INFINITE_S, INFINITE_S)),
        (0xFFFFFFFF, 10, None, (INFINITE_S, 10.0, INFINITE_S)),
        (0xFFFFFFFF, 10, 20, (INFINITE_S, 10.0, 20.0)),
    ],
)
def test_lease_times(lease, renewal, rebinding, expected):
    """T1 and T2 are the server's if they are in order, or half and 85 % of the lease time."""
    received = {51: lease, 58: renewal, 59: rebinding}
    sent = {number: seconds(value) for number, value in received.items() if value is not None}
    assert options.lease_times(sent) == LeaseTimes(*expected)


def test_malformed_mask_and_times():
    """A mask with zeros between ones, or a lease time of 0, is Malformed; T1 and T2 of the wrong length are ignored."""
    masks = b"", b"\xff" * 3, b"\xff" * 8, b"\0\0\0\xff", b"\xff\0\xff\0", b"\xff\xff\xff\x01", b"\0" * 5
    times = b"", b"\1", seconds(1) * 2, seconds(0)
    for number, contents, read in ((1, masks, options.subnet_prefix), (51, times, options.lease_times)):
        for content in contents:
            with pytest.raises(Malformed):
                read({number: content})
    assert options.lease_times({51: seconds(100), 58: b"\0", 59: seconds(90) * 2}) == LeaseTimes(100.0, 50.0, 85.0)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (ROUTER.packed, [ROUTER]),
        (ROUTER.packed + bytes(4) + b"\x0a\0\0\1", [ROUTER, IPv4Address("10.0.0.1")]),
        *((content, []) for content in (b"", b"\1", ROUTER.packed + b"\0", bytes(4))),
        *((bytes((first, 0, 0, 1)), []) for first in (0, 127, 224, 239, 240, 255)),
    ],
)
def test_routers_and_name_servers(content, expected):
    """Routers and name servers are addresses in the server's order that hosts can have."""
    assert options.routers({3: content}) == tuple(expected)
    assert options.dns_servers({6: content}) == tuple(expected)
    assert options.server_identifier({54: content}) == (expected[0] if len(content) == 4 and expected else None)
    assert (options.routers({}), options.dns_servers({}), options.server_identifier({})) == ((), (), None)


def test_dns():
    """The settings for name resolution come from options 6, 15 and 119."""
    sent = {6: ROUTER.packed, 15: b"example.org", 119: RFC3397}
    assert options.dns(sent) == DNS(("192.0.2.1",), "example.org", APPLE)
    assert options.dns({}) == DNS()


@pytest.mark.parametrize(
    ("destination", "expected"),
    [
        *(("10.7.0.0", "10.0.0.0/8"), ("126.255.255.255", "126.0.0.0/8"), ("128.1.2.3", "128.1.0.0/16")),
        *(("191.255.0.1", "191.255.0.0/16"), ("192.0.2.7", "192.0.2.0/24"), ("223.255.255.1", "223.255.255.0/24")),
        *(("224.0.0.1", None), ("255.255.255.255", None), ("0.0.0.0", None), ("0.0.0.1", None)),
    ],
)
def test_static_routes(destination, expected):
    """Option 33 has classful routes: host bits are cut, so that the kernel accepts them."""
    other = IPv4Address("10.0.0.1").packed
    content = IPv4Address(destination).packed + VIA + other + other
    listed = [route(expected)] if expected else []
    assert options.static_routes({33: content}) == (*listed, route("10.0.0.0/8", IPv4Address("10.0.0.1")))
    assert options.static_routes({33: content[:-1]}) == ()
    assert options.static_routes({33: other + bytes(4)}) == ()
    assert options.static_routes({}) == ()


def test_routes():
    """Option 121 replaces options 33 and 3; a malformed one does not."""
    router, static = {3: VIA + b"\x0a\0\0\1"}, {33: b"\x0a\0\0\0" + VIA}
    assert options.routes({}) == ()
    assert options.routes(router) == (route("0.0.0.0/0"),)
    assert options.routes(static) == (route("10.0.0.0/8"),)
    assert options.routes(router | static) == (route("10.0.0.0/8"), route("0.0.0.0/0"))
    assert options.routes(router | static | {121: b"\x08\x0b" + VIA}) == (route("11.0.0.0/8"),)
    assert options.routes(router | static | {121: b"\x21"}) == (route("10.0.0.0/8"), route("0.0.0.0/0"))
    assert options.routes(router | {121: b"\x08\x0b\xff\xff\xff\xff"}) == ()
