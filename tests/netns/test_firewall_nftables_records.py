"""What firewalld was told of, remembered in a set of nftables (plugins.firewall.nftables_records)."""

from ipaddress import ip_address

import pytest

from cni.conf import Attachment
from kernel.netfilter.nft_owner import owner_id
from plugins.firewall import nftables_records as records
from plugins.firewall.nftables_records import Record
from plugins.firewall.spec import FirewallSpec
from tests.support.firewall_sets import sets
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_inet")

IPV4, IPV6 = ip_address("10.22.0.2"), ip_address("fd00:22::2")
POD = FirewallSpec("net", "cid", "eth0", (IPV4, IPV6))


def record(address, zone="trusted", *, network="net", container_id="cid"):
    """Returns the record of eth0 of a container."""
    return Record(zone, address, owner_id(network, container_id, "eth0"))


def test_records(netfilter, host):
    """An attachment's addresses and zone are remembered once, found by its name alone, and forgotten."""
    nothing = FirewallSpec("net", "cid", "eth0")
    assert records.list_records_of(netfilter, nothing) == []
    records.delete_records(netfilter, [record(IPV4)])
    assert nft_rules(host) == []
    records.save_records(netfilter, POD)
    records.save_records(netfilter, POD)
    assert sets(host, comments=True) == {
        "firewalld4": ["10.22.0.2: zone: trusted, net: net, if: eth0, id: cid"],
        "firewalld6": ["fd00:22::2: zone: trusted, net: net, if: eth0, id: cid"],
    }
    found = records.list_records_of(netfilter, nothing)
    assert found == [record(IPV4), record(IPV6)]
    records.delete_records(netfilter, found)
    assert sets(host) == {}
    records.delete_records(netfilter, found)


def test_the_newest_has_an_address(netfilter, host):
    """An address that another attachment had is the newest's, and who had it cannot forget it."""
    records.save_records(netfilter, POD)
    old = records.list_records_of(netfilter, POD)
    new = FirewallSpec("net", "new", "eth0", (IPV4,), zone="public")
    records.save_records(netfilter, new)
    records.delete_records(netfilter, old)
    assert records.list_records_of(netfilter, POD) == []
    assert records.list_records_of(netfilter, new) == [record(IPV4, "public", container_id="new")]


def test_stale_records(netfilter, host):
    """What is a network's and of no valid attachment is stale, other networks' never is."""
    records.save_records(netfilter, POD)
    records.save_records(netfilter, FirewallSpec("net", "two", "eth0", (ip_address("10.22.0.3"),)))
    records.save_records(netfilter, FirewallSpec("other", "cid", "eth0", (ip_address("10.33.0.3"),)))
    assert records.list_stale_records(netfilter, "net", [Attachment("cid", "eth0")]) == [
        record(ip_address("10.22.0.3"), container_id="two")
    ]
    assert records.list_stale_records(netfilter, "net", [Attachment("cid", "eth0"), Attachment("two", "eth0")]) == []
    assert len(records.list_stale_records(netfilter, "net", [Attachment("cid", "eth1")])) == 3


def test_records_that_were_listed_and_loaded_again(netfilter, host, tmp_path):
    """A record that `nft` listed and loaded, which keeps the comment only, is still whole."""
    records.save_records(netfilter, POD)
    file = tmp_path / "rules"
    file.write_text("flush ruleset\n" + host.run("nft", "list", "ruleset"))
    host.run("nft", "-f", str(file))
    assert records.list_records_of(netfilter, POD) == [record(IPV4), record(IPV6)]
