"""What firewalld was told of, remembered in a set of nftables (plugins.firewall.nftables_records)."""

from ipaddress import ip_address

import pytest

from cni.conf import Attachment
from kernel.nft_owner import owner_of
from plugins.firewall import nftables_records as records
from plugins.firewall.nftables_records import Record
from plugins.firewall.wanted import Protected
from tests.support.firewalled import sets
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_inet")

IPV4, IPV6 = ip_address("10.22.0.2"), ip_address("fd00:22::2")
POD = Protected("net", "cid", "eth0", (IPV4, IPV6))


@pytest.fixture
def inside(host):
    """The host's namespace, which is the current one during the test."""
    with host.entered():
        yield host


def record(address, zone="trusted", *, network="net", container_id="cid"):
    """Returns the record of eth0 of a container."""
    return Record(zone, address, owner_of(network, container_id, "eth0"))


def test_records(inside):
    """An attachment's addresses and zone are remembered once, found by its name alone, and forgotten."""
    nothing = Protected("net", "cid", "eth0")
    assert records.remembered(nothing) == []
    records.forget([record(IPV4)])
    assert nft_rules(inside) == []
    records.remember(POD)
    records.remember(POD)
    assert sets(inside, comments=True) == {
        "firewalld4": ["10.22.0.2: zone: trusted, net: net, if: eth0, id: cid"],
        "firewalld6": ["fd00:22::2: zone: trusted, net: net, if: eth0, id: cid"],
    }
    found = records.remembered(nothing)
    assert found == [record(IPV4), record(IPV6)]
    records.forget(found)
    assert sets(inside) == {}
    records.forget(found)


def test_the_newest_has_an_address(inside):
    """An address that another attachment had is the newest's, and who had it cannot forget it."""
    records.remember(POD)
    old = records.remembered(POD)
    new = Protected("net", "new", "eth0", (IPV4,), zone="public")
    records.remember(new)
    records.forget(old)
    assert records.remembered(POD) == []
    assert records.remembered(new) == [record(IPV4, "public", container_id="new")]


def test_stale_records(inside):
    """What is a network's and of no valid attachment is stale, other networks' never is."""
    records.remember(POD)
    records.remember(Protected("net", "two", "eth0", (ip_address("10.22.0.3"),)))
    records.remember(Protected("other", "cid", "eth0", (ip_address("10.33.0.3"),)))
    assert records.stale("net", [Attachment("cid", "eth0")]) == [record(ip_address("10.22.0.3"), container_id="two")]
    assert records.stale("net", [Attachment("cid", "eth0"), Attachment("two", "eth0")]) == []
    assert len(records.stale("net", [Attachment("cid", "eth1")])) == 3


def test_records_that_were_listed_and_loaded_again(inside, tmp_path):
    """A record that `nft` listed and loaded, which keeps the comment only, is still whole."""
    records.remember(POD)
    file = tmp_path / "rules"
    file.write_text("flush ruleset\n" + inside.run("nft", "list", "ruleset"))
    inside.run("nft", "-f", str(file))
    assert records.remembered(POD) == [record(IPV4), record(IPV6)]
