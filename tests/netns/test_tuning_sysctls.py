"""Sysctls of tuning: keys, order, values that are refused, and the administrator's allow list."""

import pytest

from tests.support.bandwidth_network import connect_veth
from tests.support.tuning_network import install_with_allow_list

ARP_FILTER = "net/ipv4/conf/eth0/arp_filter"
SOMAXCONN = "net.core.somaxconn"


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
def test_one_sysctl(tuning, sandbox, prev_result, key, name, place):
    """A sysctl, with dots or slashes, from the file or from args, is written only in the pod and not saved."""
    keys = {"sysctl": {key: "1"}} if place == "the file" else {"args": {"cni": {"sysctl": {key: "1"}}}}
    net, host = tuning.having(**keys), tuning.everything(tuning.host)
    assert net.add(sandbox, prev_result) == prev_result
    assert sandbox.sysctl(name) == "1"
    assert tuning.everything(tuning.host) == host
    assert not net.data_dir.exists()
    net.check(sandbox, prev_result)
    sandbox.set_sysctl(name, "0")
    error = net.run("CHECK", sandbox, prev_result).error()
    path = f"/proc/sys/{name}"
    assert error["msg"] == f"Error: Tuning configured value of {path} is 1, current value is 0"
    net.delete(sandbox)


def test_interface_with_a_dot(tuning, host, sandbox):
    """IFNAME stands for the interface's name, also if that has a dot."""
    result = connect_veth(host, sandbox, ifname="eth0.5")
    net = tuning.having(sysctl={"net.ipv4.conf.IFNAME.arp_filter": "1"})
    net.add(sandbox, result, ifname="eth0.5")
    assert sandbox.sysctl("net/ipv4/conf/eth0.5/arp_filter") == "1"
    net.check(sandbox, result, ifname="eth0.5")


@pytest.mark.parametrize("name", ["net1/100", "net1.100", "net1"])
@pytest.mark.parametrize("command", ["ADD", "CHECK"])
def test_setting_of_an_interface_that_does_not_exist(tuning, host, sandbox, name, command):
    """A dot in an interface's name, as sysctl(8) writes it or not, or a wrong name: the error prints the right key."""
    result = connect_veth(host, sandbox, ifname="net1.100")
    net = tuning.having(sysctl={f"net.ipv4.conf.{name}.accept_redirects": "0"})
    error = net.run(command, sandbox, result, ifname="net1.100").error()
    if name == "net1":
        assert 'the container has no interface "net1"; ' in error["details"]
    else:
        assert 'the interface is read as "net1/100"; ' in error["details"]
    key = error["details"].split('"')[-2]
    net = tuning.having(sysctl={key: "0"})
    net.add(sandbox, result, ifname="net1.100")
    net.check(sandbox, result, ifname="net1.100")
    assert sandbox.sysctl("net/ipv4/conf/net1.100/accept_redirects") == "0"


@pytest.mark.parametrize("key", ["net.core.nosuch", "net.ipv4.conf.eth0.nosuch", "net.ipv4.nosuch"])
def test_setting_that_the_kernel_lacks(tuning, sandbox, prev_result, key):
    """The error says that the kernel lacks a setting, unless its interface is missing."""
    error = tuning.having(sysctl={key: "0"}).run("ADD", sandbox, prev_result).error()
    assert "this kernel has no such setting" in error["details"]


def test_args_are_merged_key_by_key(tuning, sandbox, prev_result):
    """A sysctl of args replaces the same key of the file and keeps the others."""
    file = {"net.core.somaxconn": "77", "net.ipv4.ip_default_ttl": "11"}
    net = tuning.having(sysctl=file, args={"cni": {"sysctl": {"net.core.somaxconn": "78"}}})
    net.check(sandbox, net.add(sandbox, prev_result))
    assert (sandbox.sysctl("net/core/somaxconn"), sandbox.sysctl("net/ipv4/ip_default_ttl")) == ("78", "11")


def test_order_of_sysctls(tuning, sandbox, prev_result):
    """Sysctls are written in the order of the configuration."""
    keys = ("net.ipv4.conf.all.forwarding", "net.ipv4.conf.IFNAME.forwarding")
    for order, expected in ((keys, "0"), (keys[::-1], "1")):
        net = tuning.having(sysctl={key: "1" if key == keys[0] else "0" for key in order})
        net.add(sandbox, prev_result)
        assert sandbox.sysctl("net/ipv4/conf/eth0/forwarding") == expected
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
def test_values_of_several_words(tuning, sandbox, prev_result, key, value, shown):
    """CHECK compares values word by word, also long ones."""
    net = tuning.having(sysctl={key: value})
    net.check(sandbox, net.add(sandbox, prev_result))
    assert sandbox.sysctl(key.replace(".", "/")) == (shown or value)
    sandbox.set_sysctl(key.replace(".", "/"), "2048 65000" if "range" in key else "7")
    assert "current value is " in net.check_error(sandbox, prev_result)


def test_empty_value_and_write_only_sysctl(tuning, sandbox, prev_result):
    """An empty value is written, and CHECK ignores a write-only sysctl."""
    sandbox.set_sysctl("net/ipv4/ip_local_reserved_ports", "5")
    net = tuning.having(sysctl={"net.ipv4.ip_local_reserved_ports": "", "net.ipv4.route.flush": "1"})
    net.check(sandbox, net.add(sandbox, prev_result))
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
def test_invalid_sysctls_are_refused(tuning, sandbox, prev_result, sysctl, code, msg):
    """ADD fails and changes nothing for a key that is not below net, an unknown key, or a refused value."""
    first = {"net.core.somaxconn": "77", "net.ipv4.ip_local_port_range": "2000 3000"}
    sysctls = first | sysctl if isinstance(sysctl, dict) else sysctl
    error = tuning.having(sysctl=sysctls, mtu=1400).add_error(sandbox, prev_result)
    assert error["code"] == code
    assert msg in error["msg"]
    assert 0 < len(error["details"]) < 200


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
def test_allow_list(tuning, sandbox, prev_result, tmp_path, text, allowed):
    """Without a list all sysctls are allowed, with one those that an expression matches unanchored; STATUS agrees."""
    net = tuning.having(sysctl={SOMAXCONN: "77"}, mtu=1400).with_plugin(install_with_allow_list(tmp_path / "bin", text))
    status = net.having(cniVersion="1.1.0").run("STATUS")
    if allowed:
        net.check(sandbox, net.add(sandbox, prev_result))
        status.assert_silent()
        return
    listed = " ".join(line.strip() for line in text.splitlines() if line.strip())
    assert net.add_error(sandbox, prev_result)["msg"] == REFUSED.format(SOMAXCONN, listed)
    net.check(sandbox, tuning.having(sysctl={SOMAXCONN: "77"}, mtu=1400).add(sandbox, prev_result))
    error = status.error()
    assert (error["code"], error["msg"]) == (
        50,
        f"tuning does not work on this node: {REFUSED.format(SOMAXCONN, listed)}",
    )


def test_allow_list_matches_keys_as_written(tuning, sandbox, prev_result, tmp_path):
    """Expressions are matched against keys with IFNAME unreplaced, also against keys of args."""
    net = tuning.with_plugin(install_with_allow_list(tmp_path / "bin", "^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$"))
    net.having(sysctl={"net.ipv4.conf.IFNAME.arp_filter": "1"}).add(sandbox, prev_result)
    for key in ("net.ipv4.conf.eth0.arp_filter", "net/ipv4/conf/IFNAME/arp_filter"):
        error = net.having(args={"cni": {"sysctl": {key: "1"}}}).add_error(sandbox, prev_result)
        assert error["msg"].startswith(f"Sysctl {key} is not allowed.")
    net.having(mtu=1400).add(sandbox, prev_result)


@pytest.mark.parametrize("line", ["net(", "[[:alpha:]]", "(?=net)", r"(n)\1", "n{,3}"])
def test_invalid_allow_list(tuning, sandbox, prev_result, tmp_path, line):
    """A line that is not an expression, or has another meaning in Go, allows nothing, and the error has its number."""
    net = tuning.having(sysctl={SOMAXCONN: "77"}).with_plugin(
        install_with_allow_list(tmp_path / "bin", f"somaxconn\n\n{line}\n")
    )
    msg = net.add_error(sandbox, prev_result)["msg"]
    assert msg.startswith(f"error parsing regexp: /etc/cni/tuning/allowlist.conf, line 3: {line}")
    assert net.having(cniVersion="1.1.0").run("STATUS").error()["code"] == 50
