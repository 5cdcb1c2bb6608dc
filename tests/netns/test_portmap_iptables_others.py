"""Host ports with iptables among what others do there: rules that look like ours, rules that iptables cannot express."""

import pytest

from tests.netns.conftest import NFT
from tests.support.hostports import TOOLS

OTHER = ["10.22.0.3/16", "fd00:22::3/64"]
JUMP = "-m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"
MARK = "-m mark --mark 0x2000/0x2000"
MARKED = "MARK --set-xmark 0x2000/0x2000"
# Lines that make a rule of all containers another one, and that one.
LOOK_ALIKE = [
    ("-R PREROUTING 1 -i lo {}", JUMP),
    ("-R OUTPUT 1 -m addrtype ! --dst-type LOCAL -j CNI-HOSTPORT-DNAT", JUMP),
    ("-R PREROUTING 1 -m addrtype --src-type LOCAL -j CNI-HOSTPORT-DNAT", JUMP),
    ("-R PREROUTING 1 -m addrtype --dst-type LOCAL -g CNI-HOSTPORT-DNAT", JUMP),
    ('-R PREROUTING 1 -m comment --comment "mine" {}', JUMP),
    ("-R CNI-HOSTPORT-MASQ 1 -m mark ! --mark 0x2000/0x2000 -j MASQUERADE", f"{MARK} -j MASQUERADE"),
    ("-R CNI-HOSTPORT-MASQ 1 -m mark --mark 0x2000/0x2000 -j MASQUERADE --random", f"{MARK} -j MASQUERADE"),
    ("-R CNI-HOSTPORT-SETMARK 1 -i eth9 -j {}", MARKED),
    ("-R POSTROUTING 1 -o eth9 {}", '-m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ'),
]


@pytest.fixture
def net(host_ports):
    return host_ports


@pytest.mark.parametrize(("line", "rule"), LOOK_ALIKE)
def test_a_rule_that_looks_like_a_shared_one_is_none(net, line, rule):
    """ADD makes the shared rule beside one that differs in a condition or an option, which stays, and CHECK demands it."""
    net.add("cid", "8080:80")
    for tool in TOOLS:
        net.load(line.format(rule), tool=tool)
    before = net.rules()
    assert rule in net.run("CHECK", "cid", "8080:80").error()["msg"]
    net.add("other", "9090:90", addresses=OTHER)
    net.check("cid", "8080:80")
    net.check("other", "9090:90", addresses=OTHER)
    for tool, lines in net.rules().items():
        assert set(before[tool]) <= set(lines)


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_jumps_of_the_user_stay(net):
    """A way into our chains that the user made is not taken for a shared rule that is there twice."""
    net.add("cid", "8080:80")
    mine = "-A OUTPUT ! -d 127.0.0.0/8 -o uplink -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"
    net.load(mine.replace("-A OUTPUT", "-I OUTPUT 1"), "-F CNI-HOSTPORT-SETMARK")
    net.add("other", "9090:90", addresses=OTHER)
    jumps = [line for line in net.rules()["iptables"] if line.startswith("-A OUTPUT")]
    assert jumps == [mine, f"-A OUTPUT {JUMP}"]
    net.check("cid", "8080:80")
