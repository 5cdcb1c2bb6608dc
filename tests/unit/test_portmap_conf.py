"""Parsing the configuration of portmap (plugins.portmap.conf)."""

from ipaddress import ip_address, ip_interface

import pytest

from plugins.portmap.conf import HostPorts, PortmapConf, PortMapping, may_have_host_ports, parse, parse_leniently
from tests.support.netconf import arguments, netconf, refusal

ARGS = arguments()
TCP = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
POD, OTHER = {"name": "eth0", "sandbox": "/run/netns/pod"}, {"name": "net1", "sandbox": "/run/netns/pod"}
HOST_VETH = {"name": "eth0"}
PREFIX = "failed to parse network configuration: "


def parse_keys(keys):
    conf = netconf("portmap", keys)
    return parse(ARGS, conf, conf.prev_result())


def parse_error(keys):
    failure = refusal("portmap", keys)
    assert (failure.code, bool(failure.details)) == (7, True)
    return failure


def with_mappings(*mappings):
    return {"runtimeConfig": {"portMappings": list(mappings)}}


def prev_result(interfaces, *ips):
    return {"prevResult": {"cniVersion": "1.1.0", "interfaces": interfaces, "ips": list(ips)}}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        dict.fromkeys(("backend", "snat", "masqAll", "markMasqBit", "externalSetMarkChain", "onConflict")),
        dict.fromkeys(("conditionsV4", "conditionsV6", "runtimeConfig", "prevResult")),
        {"backend": "", "externalSetMarkChain": "", "conditionsV4": [], "conditionsV6": [], "onConflict": ""},
        {"runtimeConfig": {}, "x": [1], "capabilities": {"portMappings": True}},
        {"runtimeConfig": {"portMappings": None}},
        {"runtimeConfig": {"portMappings": []}},
    ],
)
def test_defaults(keys):
    """Absent keys, null and empty values have the documented defaults; unknown keys are ignored."""
    ports = HostPorts(
        network="net",
        container_id="cid",
        ifname="eth0",
        netns=ARGS.netns,
        mappings=(),
        addresses={},
        snat=True,
        masq_all=False,
        mark_bit=13,
        external_mark_chain="",
        conditions={4: (), 6: ()},
        refuse_conflicts=False,
    )
    assert parse_keys(keys) == PortmapConf("", ports)


@pytest.mark.parametrize(
    ("keys", "field", "value"),
    [
        ({"snat": False}, "snat", False),
        ({"SNAT": False}, "snat", False),
        ({"masqAll": True}, "masq_all", True),
        ({"markMasqBit": 0}, "mark_bit", 0),
        ({"markMasqBit": 31}, "mark_bit", 31),
        ({"externalSetMarkChain": "KUBE-MARK-MASQ"}, "external_mark_chain", "KUBE-MARK-MASQ"),
        ({"externalSetMarkChain": "C" * 28}, "external_mark_chain", "C" * 28),
        ({"conditionsV4": ["-s", "10.0.0.0/8"]}, "conditions", {4: ("-s", "10.0.0.0/8"), 6: ()}),
        ({"conditionsV6": ["!", "-s", "fd00::/8"]}, "conditions", {4: (), 6: ("!", "-s", "fd00::/8")}),
        ({"onConflict": "fail"}, "refuse_conflicts", True),
    ],
)
def test_every_key_has_its_field(keys, field, value):
    """Each key sets its field."""
    assert getattr(parse_keys(keys).ports, field) == value


@pytest.mark.parametrize(
    ("keys", "backend"),
    [
        ({"backend": "iptables"}, "iptables"),
        ({"backend": "nftables"}, "nftables"),
        ({"externalSetMarkChain": "KUBE-MARK-MASQ"}, "iptables"),
        ({"conditionsV4": ["-s", "10.0.0.0/8"]}, "iptables"),
        ({"conditionsV6": ["!", "-s", "fd00::/8"]}, "iptables"),
        ({"conditionsV4": ["ip", "saddr", "10.0.0.0/8"]}, "nftables"),
        ({"conditionsV6": ["ip6 saddr fd00::/8"]}, "nftables"),
        ({"backend": "nftables", "conditionsV6": ["ip6 saddr fd00::/8"]}, "nftables"),
        ({"backend": "iptables", "conditionsV4": ["-i", "eth0"], "externalSetMarkChain": "X"}, "iptables"),
        ({"backend": "nftables", "markMasqBit": 5}, "nftables"),
    ],
)
def test_backend_is_chosen_by_its_key_or_by_the_language_of_conditions(keys, backend):
    """Key "backend" chooses the backend; without it the language of the conditions does."""
    assert parse_keys(keys).backend == backend


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (
            {"backend": "iptables", "conditionsV4": ["ip saddr 10.0.0.0/8"], "conditionsV6": ["ip6 saddr fd00::/8"]},
            "iptables backend was requested but configuration contains nftables-specific options "
            "[conditionsV4 conditionsV6]",
        ),
        (
            {"backend": "nftables", "conditionsV4": ["-s", "10.0.0.0/8"]},
            "nftables backend was requested but configuration contains iptables-specific options [conditionsV4]",
        ),
        (
            {"backend": "nftables", "externalSetMarkChain": "KUBE-MARK-MASQ", "conditionsV6": ["!", "-i", "lo"]},
            "nftables backend was requested but configuration contains iptables-specific options "
            "[externalSetMarkChain conditionsV6]",
        ),
        (
            {"conditionsV4": ["-i", "eth0"], "conditionsV6": ["iifname", "eth0"]},
            "iptables backend was requested but configuration contains nftables-specific options [conditionsV6]",
        ),
        ({"backend": "nft"}, 'unrecognized backend "nft"'),
        (
            {"externalSetMarkChain": "KUBE-MARK-MASQ", "markMasqBit": 13},
            "Cannot specify externalSetMarkChain and markMasqBit",
        ),
        ({"markMasqBit": 32}, "MasqMarkBit must be between 0 and 31"),
        ({"markMasqBit": -1}, "MasqMarkBit must be between 0 and 31"),
        (with_mappings(TCP | {"hostPort": None}), "Invalid host port number: 0"),
        (with_mappings(TCP | {"containerPort": -80}), "Invalid container port number: -80"),
        (with_mappings({}), "Invalid container port number: 0"),
        (with_mappings(None), "Invalid container port number: 0"),
    ],
)
def test_refusals_of_the_reference_plugin(keys, text):
    """What the reference plugin refuses is refused with its message and code 7; the details name a key or a fix."""
    assert parse_error(keys).msg == text


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (with_mappings(TCP, TCP | {"protocol": "icmp"}), '"runtimeConfig.portMappings[1].protocol" is unknown: "icmp"'),
        (with_mappings(TCP | {"protocol": "tcp "}), '"runtimeConfig.portMappings[0].protocol" is unknown: "tcp "'),
        (with_mappings(TCP | {"protocol": None}), '"runtimeConfig.portMappings[0].protocol" is missing'),
        ({"conditionsV4": [""]}, '"conditionsV4" begins with an empty word'),
        (with_mappings(TCP, TCP | {"hostIP": "x"}), '"runtimeConfig.portMappings[1].hostIP" is not an IP address: x'),
        (with_mappings(TCP | {"hostIP": "10.1.2.0/24"}), '"runtimeConfig.portMappings[0].hostIP" is not an IP address'),
        (
            with_mappings(TCP | {"hostIP": "fe80::1%eth0"}),
            '"runtimeConfig.portMappings[0].hostIP" is not an IP address',
        ),
        ({"externalSetMarkChain": "C" * 29}, '"externalSetMarkChain" is not a valid chain name: "CCC'),
        ({"externalSetMarkChain": "A B"}, '"externalSetMarkChain" is not a valid chain name: "A B"'),
        ({"externalSetMarkChain": 'A"B'}, '"externalSetMarkChain" is not a valid chain name: "A"B"'),
        ({"externalSetMarkChain": "A\\B"}, '"externalSetMarkChain" is not a valid chain name: "A\\B"'),
        ({"externalSetMarkChain": "-A"}, '"externalSetMarkChain" is not a valid chain name: "-A"'),
        ({"conditionsV4": ["-s", *[""] * 4000]}, '"conditionsV4" is longer than 4096 bytes'),
        ({"externalSetMarkChain": "A\nB"}, "\"externalSetMarkChain\" has a control character in 'A\\nB'"),
        ({"conditionsV4": ["-s", "10.0.0.0/8\n-j X"]}, '"conditionsV4" has a control character in '),
        ({"conditionsV6": ["ip6 saddr\x00"]}, '"conditionsV6" has a control character in '),
        ({"onConflict": "replace"}, '"onConflict" is unknown: "replace"'),
        (with_mappings(TCP, TCP | {"hostPort": "80"}), '"runtimeConfig.portMappings[1].hostPort" must be an integer'),
    ],
)
def test_invalid_values_are_refused_with_their_path(keys, text):
    """Values of a wrong type, or that the reference plugin passes to its backends, are refused with the key's path."""
    assert parse_error(keys).msg.startswith(PREFIX + text)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (TCP, PortMapping(8080, 80, "tcp")),
        ({"HostPort": 53, "ContainerPort": 53, "Protocol": "udp", "HostIP": ""}, PortMapping(53, 53, "udp")),
        (TCP | {"protocol": "SCTP"}, PortMapping(8080, 80, "sctp")),
        (TCP | {"hostPort": 65535, "containerPort": 65535}, PortMapping(65535, 65535, "tcp")),
        (TCP | {"hostIP": "192.0.2.1"}, PortMapping(8080, 80, "tcp", ip_address("192.0.2.1"))),
        (TCP | {"hostIP": "0.0.0.0"}, PortMapping(8080, 80, "tcp", ip_address("0.0.0.0"))),
        (TCP | {"hostIP": "2001:DB8:0::1"}, PortMapping(8080, 80, "tcp", ip_address("2001:db8::1"))),
        (TCP | {"hostIP": "::ffff:192.0.2.1"}, PortMapping(8080, 80, "tcp", ip_address("192.0.2.1"))),
    ],
)
def test_mappings_in_the_spelling_of_each_runtime(keys, expected):
    """Keys of mappings may be capitalized, as containerd's are, and addresses have any notation."""
    assert parse_keys(with_mappings(keys)).ports.mappings == (expected,)


def test_duplicate_mappings_are_removed():
    """Equal mappings are one mapping; different mappings keep their order."""
    udp = TCP | {"protocol": "udp"}
    mappings = parse_keys(with_mappings(udp, TCP, udp | {"hostIP": ""}, TCP)).ports.mappings
    assert [mapping.protocol for mapping in mappings] == ["udp", "tcp"]


@pytest.mark.parametrize(
    ("interfaces", "ips", "expected"),
    [
        ([HOST_VETH], [{"address": "10.1.2.5/24", "interface": 0}], []),
        ([], [{"address": "10.1.2.5/24"}, {"address": "10.1.2.9/24"}], ["10.1.2.5/24"]),
        (
            [OTHER, HOST_VETH, POD],
            [{"address": f"10.1.{number}.5/24", "interface": number} for number in range(3)],
            ["10.1.2.5/24"],
        ),
        (
            [POD],
            [{"address": text, "interface": 0} for text in ("fd00::5/64", "10.1.2.5/24", "10.9.9.9/8", "fd00::6/64")],
            ["10.1.2.5/24", "fd00::5/64"],
        ),
    ],
)
def test_addresses_of_the_pod(interfaces, ips, expected):
    """For each IP version the pod has the first address that prevResult does not assign to another interface."""
    ports = parse_keys(prev_result(interfaces, *ips)).ports
    assert [ports.addresses[version] for version in ports.ip_versions] == [ip_interface(text) for text in expected]


def test_del_gets_every_valid_mapping():
    """DEL gets each valid mapping, even if other mappings, other keys or prevResult are invalid."""
    broken = {"snat": "x", "markMasqBit": 99, "backend": "x", "prevResult": 5}
    mappings = with_mappings(TCP | {"protocol": "icmp"}, {}, TCP, TCP | {"hostIP": "x"})
    ports = parse_leniently(ARGS, netconf("portmap", broken | mappings))
    assert ports == HostPorts("net", "cid", "eth0", (PortMapping(8080, 80, "tcp"),), {}, netns=ARGS.netns)
    keys = with_mappings(TCP) | prev_result([], {"address": "fd00::5/64"})
    complete = parse_leniently(ARGS, netconf("portmap", keys))
    assert complete.addresses == {6: ip_interface("fd00::5/64")}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, False),
        (with_mappings(), False),
        ({"runtimeConfig": None}, False),
        (with_mappings(TCP), True),
        (with_mappings(5), True),
        ({"runtimeConfig": {"portMappings": "x"}}, True),
        ({"runtimeConfig": "x"}, True),
    ],
)
def test_del_assumes_host_ports_if_their_type_is_wrong(keys, expected):
    """DEL looks for rules unless portMappings is absent or empty; a wrong type may hide mappings."""
    assert may_have_host_ports(netconf("portmap", keys)) is expected
