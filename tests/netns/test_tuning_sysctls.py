"""What tuning writes below /proc/sys/net, in which order, what it refuses, and the administrator's allow list."""

import json

import pytest

from tests.support.bandwidth_network import connect_veth
from tests.support.invocation import run_plugin
from tests.support.tuned import allowing


@pytest.fixture
def before(host, sandbox):
    """The result of the plugin before; veth0 leads to the pod."""
    return connect_veth(host, sandbox)


ARP_FILTER = "net/ipv4/conf/eth0/arp_filter"
LIST = "net.core.somaxconn"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("net.core.somaxconn", "net/core/somaxconn"),
        ("net/core/somaxconn", "net/core/somaxconn"),
        ("/net//core.somaxconn", "net/core/somaxconn"),
        ("net.ipv4.conf.IFNAME.arp_filter", ARP_FILTER),
        ("net/ipv4/conf/IFNAME/arp_filter", ARP_FILTER),
        ("net.ipv4.conf.eth0.arp_filter", ARP_FILTER),
        ("net.ipv4.conf.all.arp_filter", "net/ipv4/conf/all/arp_filter"),
    ],
)
@pytest.mark.parametrize("place", ["the file", "args"])
def test_a_setting(tuning, sandbox, before, key, name, place):
    """A setting is written in the pod only, by dots or slashes, from the file or from args; nothing is saved of it."""
    asked = {"sysctl": {key: "1"}} if place == "the file" else {"args": {"cni": {"sysctl": {key: "1"}}}}
    net, host = tuning.having(**asked), tuning.everything(tuning.host)
    assert net.add(sandbox, before) == before
    assert sandbox.sysctl(name) == "1"
    assert tuning.everything(tuning.host) == host
    assert not net.data_dir.exists()
    net.check(sandbox, before)
    sandbox.set_sysctl(name, "0")
    error = net.run("CHECK", sandbox, before).error()
    path = f"/proc/sys/{name}"
    assert error["msg"] == f"Error: Tuning configured value of {path} is 1, current value is 0"
    net.delete(sandbox)


def test_an_interface_with_a_dot(tuning, host, sandbox):
    """IFNAME reaches an interface whose name has a dot."""
    result = connect_veth(host, sandbox, ifname="eth0.5")
    net = tuning.having(sysctl={"net.ipv4.conf.IFNAME.arp_filter": "1"})
    net.add(sandbox, result, ifname="eth0.5")
    assert sandbox.sysctl("net/ipv4/conf/eth0.5/arp_filter") == "1"
    net.check(sandbox, result, ifname="eth0.5")


def test_args_are_merged_key_by_key(tuning, sandbox, before):
    """A key of args replaces the file's, the others stay."""
    file = {"net.core.somaxconn": "77", "net.ipv4.ip_default_ttl": "11"}
    net = tuning.having(sysctl=file, args={"cni": {"sysctl": {"net.core.somaxconn": "78"}}})
    net.check(sandbox, net.add(sandbox, before))
    assert (sandbox.sysctl("net/core/somaxconn"), sandbox.sysctl("net/ipv4/ip_default_ttl")) == ("78", "11")


def test_the_order_of_the_text(tuning, sandbox, before):
    """Settings are written in the order of the configuration: what stands last has the last word."""
    keys = ("net.ipv4.conf.all.forwarding", "net.ipv4.conf.IFNAME.forwarding")
    for order, wanted in ((keys, "0"), (keys[::-1], "1")):
        net = tuning.having(sysctl={key: "1" if key == keys[0] else "0" for key in order})
        net.add(sandbox, before)
        assert sandbox.sysctl("net/ipv4/conf/eth0/forwarding") == wanted
        sandbox.set_sysctl("net/ipv4/conf/all/forwarding", "0")


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("net.ipv4.ip_local_port_range", "1024 65000", "1024\t65000"),
        ("net.ipv4.ip_local_reserved_ports", "1-3,5", "1-3,5"),
        ("net.ipv4.ip_local_reserved_ports", ",".join(str(port) for port in range(1, 999, 2)), None),
        ("net.ipv4.ping_group_range", " 0  7\n", "0\t7"),
    ],
)
def test_values_of_several_words(tuning, sandbox, before, key, value, shown):
    """CHECK compares words, of however long a value."""
    net = tuning.having(sysctl={key: value})
    net.check(sandbox, net.add(sandbox, before))
    assert sandbox.sysctl(key.replace(".", "/")) == (shown or value)
    sandbox.set_sysctl(key.replace(".", "/"), "2048 65000" if "range" in key else "7")
    assert "current value is " in net.run("CHECK", sandbox, before).error()["msg"]


def test_an_empty_value_and_one_that_cannot_be_read(tuning, sandbox, before):
    """An empty value empties a list; a setting that can only be written is, and is nothing to CHECK."""
    sandbox.set_sysctl("net/ipv4/ip_local_reserved_ports", "5")
    net = tuning.having(sysctl={"net.ipv4.ip_local_reserved_ports": "", "net.ipv4.route.flush": "1"})
    net.check(sandbox, net.add(sandbox, before))
    assert sandbox.sysctl("net/ipv4/ip_local_reserved_ports") == ""


@pytest.mark.parametrize(
    ("sysctl", "code", "msg"),
    [
        ({"kernel.hostname": "x"}, 7, 'invalid net sysctl key: "kernel/hostname"'),
        ({"net.core../../kernel.hostname": "x"}, 999, "open /proc/sys/net/core/kernel/hostname: no such"),
        ({"net": "x"}, 7, 'invalid net sysctl key: "net"'),
        ({"net.core.nope": "1"}, 999, "open /proc/sys/net/core/nope: no such file or directory"),
        ({"net.core": "1"}, 999, "open /proc/sys/net/core: is a directory"),
        ({"net.ipv4.ip_default_ttl": "x"}, 999, "write /proc/sys/net/ipv4/ip_default_ttl: invalid argument"),
        ({"net.core.somaxconn": 77}, 7, '"sysctl.net.core.somaxconn" must be a string, not a number'),
        ({"net.core.somaxconn": None}, 7, '"sysctl.net.core.somaxconn" must be a string, not null'),
        ({"net.core.somaxconn": "9" * 9999}, 999, "write /proc/sys/net/core/somaxconn: invalid argument"),
        (["net.core.somaxconn"], 7, '"sysctl" must be an object, not a list'),
    ],
)
def test_what_is_refused(tuning, sandbox, before, sysctl, code, msg):
    """A key outside net, an unknown one or a value that the kernel refuses fails ADD, and nothing stays written."""
    first = {"net.core.somaxconn": "77", "net.ipv4.ip_local_port_range": "2000 3000"}
    whole = first | sysctl if isinstance(sysctl, dict) else sysctl
    error = tuning.having(sysctl=whole, mtu=1400).refused(sandbox, before)
    assert error["code"] == code
    assert msg in error["msg"]
    assert 0 < len(error["details"]) < 200


def test_a_key_that_stands_twice(tuning, sandbox, before):
    """A key that the text has twice is refused on ADD and CHECK, and nothing is changed; DEL does not mind."""
    config = json.dumps({**tuning.config, "prevResult": before, "mtu": 1400})
    text = config[:-1] + ', "sysctl": {"net.core.somaxconn": "1", "net.core.somaxconn": "2"}}'
    whole = tuning.everything(sandbox)
    how = {"netns": sandbox, "host": tuning.host, "container_id": sandbox.name}
    for command in ("ADD", "CHECK"):
        error = run_plugin("tuning", command, text.encode(), **how).error()
        assert error["msg"] == "duplicated sysctl keys are not allowed"
    run_plugin("tuning", "DEL", text.encode(), **how).assert_silent()
    assert tuning.everything(sandbox) == whole


REFUSED = "Sysctl {} is not allowed. Only the following sysctls are allowed: [{}]"


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (None, True),
        ("", False),
        ("\n  \n", False),
        ("net\\.ipv4\\.\n\n  ^net\\.core\\.somaxconn$\t\n", True),
        ("^net.core.somaxconn$", True),
        ("somax", True),
        ("^net\\.ipv4\\.", False),
        ("# net.core.somaxconn", False),
        ("^net/core/somaxconn$", False),
    ],
)
def test_the_allow_list(tuning, sandbox, before, tmp_path, text, allowed):
    """Without a list everything is allowed; with one what an expression matches, unanchored; STATUS says the same."""
    net = tuning.having(sysctl={LIST: "77"}, mtu=1400).by(allowing(tmp_path / "bin", text))
    status = net.having(cniVersion="1.1.0").run("STATUS")
    if allowed:
        net.check(sandbox, net.add(sandbox, before))
        status.assert_silent()
        return
    listed = " ".join(line.strip() for line in text.splitlines() if line.strip())
    assert net.refused(sandbox, before)["msg"] == REFUSED.format(LIST, listed)
    net.check(sandbox, tuning.having(sysctl={LIST: "77"}, mtu=1400).add(sandbox, before))
    error = status.error()
    assert (error["code"], error["msg"]) == (50, f"tuning cannot be served: {REFUSED.format(LIST, listed)}")


def test_the_allow_list_takes_keys_as_they_are_written(tuning, sandbox, before, tmp_path):
    """IFNAME is not replaced before the list is looked at, and keys of args are looked at, too."""
    net = tuning.by(allowing(tmp_path / "bin", "^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$"))
    net.having(sysctl={"net.ipv4.conf.IFNAME.arp_filter": "1"}).add(sandbox, before)
    for key in ("net.ipv4.conf.eth0.arp_filter", "net/ipv4/conf/IFNAME/arp_filter"):
        error = net.having(args={"cni": {"sysctl": {key: "1"}}}).refused(sandbox, before)
        assert error["msg"].startswith(f"Sysctl {key} is not allowed.")
    net.having(mtu=1400).add(sandbox, before)


@pytest.mark.parametrize("line", ["net(", "[[:alpha:]]", "(?=net)", r"(n)\1", "n{,3}"])
def test_an_allow_list_that_cannot_be_understood(tuning, sandbox, before, tmp_path, line):
    """A line that is no expression, or means something else to Go, allows nothing; the error has its number."""
    net = tuning.having(sysctl={LIST: "77"}).by(allowing(tmp_path / "bin", f"somaxconn\n\n{line}\n"))
    msg = net.refused(sandbox, before)["msg"]
    assert msg.startswith(f"error parsing regexp: /etc/cni/tuning/allowlist.conf, line 3: {line}")
    assert net.having(cniVersion="1.1.0").run("STATUS").error()["code"] == 50
