"""Input that ADD of bridge refuses before it changes anything."""

import pytest

from tests.support.netstate import state


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"hairpinMode": True, "promiscMode": True}, "cannot set hairpin mode and promiscuous mode at the same time"),
        ({"disableContainerInterface": True}, "cannot use IPAM when DisableContainerInterface flag is set"),
        ({"isGateway": "true"}, "failed to load netconf:"),
        ({"mtu": 1500.5}, "failed to load netconf:"),
        ({"mtu": 70000}, "failed to load netconf:"),
        ({"bridge": ""}, "failed to load netconf:"),
        ({"bridge": "a-name-much-too-long"}, 'failed to create bridge "a-name-much-too-long": the name is longer'),
        ({"ipMasq": True, "ipMasqBackend": "ebtables"}, 'unknown ipmasq backend "ebtables"'),
        ({"nonMasqueradeCIDRs": ["10.0.0.0"]}, "failed to load netconf:"),
        ({"ipam": {"type": "no-such-plugin"}}, 'failed to find plugin "no-such-plugin"'),
        ({"ipam": {"type": "../host-local"}}, "invalid plugin name: ../host-local"),
        ({"runtimeConfig": {"mac": "02:00:00:00:00"}}, "address 02:00:00:00:00: invalid MAC address"),
        ({"args": {"cni": {"mac": "01:00:5e:00:00:01"}}}, "address 01:00:5e:00:00:01: invalid MAC address"),
    ],
)
def test_invalid_configuration_is_refused(network, sandbox, keys, text):
    """ADD refuses an invalid configuration with code 7 and the reason, and changes nothing."""
    before = state(network.host), state(sandbox)
    error = network.having(**keys).run("ADD", sandbox).error()
    assert error["code"] == 7
    assert error["msg"].startswith(text)
    assert (state(network.host), state(sandbox)) == before


def test_override_accepts_the_hosts_namespace(network):
    """With CNI_NETNS_OVERRIDE both veth ends may be on the host; CHECK and DEL work."""
    before = set(state(network.host)["links"])
    override = {"CNI_NETNS_OVERRIDE": "1"}
    result = network.add(network.host, env=override)
    assert state(network.host)["links"]["eth0"]["addresses"]
    network.check(network.host, result, env=override)
    network.delete(network.host, env=override)
    assert set(state(network.host)["links"]) == before | {"cni0"}


def test_path_without_a_namespace_is_refused(network, tmp_path):
    """A missing path and a plain file are refused with code 8 and the texts that runtimes recognize."""
    file, before = tmp_path / "file", state(network.host)
    file.touch()
    for path, text in (
        (str(file), f'unknown FS magic on "{file}": '),
        ("/run/netns/absent", 'failed to Statfs "/run/netns/absent": no such file or directory'),
    ):
        error = network.run("ADD", path).error()
        assert (error["code"], text in error["msg"]) == (8, True)
        assert "is the container still there?" in error["details"] or path == str(file)
    assert (state(network.host), network.leases()) == (before, {})
