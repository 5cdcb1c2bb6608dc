"""Records of the sources added to firewalld, in nftables sets (plugins.firewall.nftables_records)."""

from ipaddress import ip_address

import pytest

from cni.conf import Attachment
from kernel.netfilter.nft_owner import owner_id
from plugins.firewall import nftables_records as records
from plugins.firewall.nftables_records import Record
from plugins.firewall.spec import FirewallSpec
from tests.support.firewall_sets import list_elements
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_inet")

IPV4, IPV6 = ip_address("10.22.0.2"), ip_address("fd00:22::2")
POD = FirewallSpec("net", "cid", "eth0", (IPV4, IPV6))


def make_record(address, zone="trusted", *, network="net", container_id="cid"):
    """Returns the record of eth0 of a container."""
    return Record(zone, address, owner_id(network, container_id, "eth0"))


def test_records_are_saved_listed_and_deleted(netfilter, host):
    """Records of an attachment are saved once, listed without its addresses, and deleted."""
    addressless = FirewallSpec("net", "cid", "eth0")
    assert records.list_records_of(netfilter, addressless) == []
    records.delete_records(netfilter, [make_record(IPV4)])
    assert nft_rules(host) == []
    records.save_records(netfilter, POD)
    records.save_records(netfilter, POD)
    assert list_elements(host, comments=True) == {
        "firewalld4": ["10.22.0.2: zone: trusted, net: net, if: eth0, id: cid"],
        "firewalld6": ["fd00:22::2: zone: trusted, net: net, if: eth0, id: cid"],
    }
    listed = records.list_records_of(netfilter, addressless)
    assert listed == [make_record(IPV4), make_record(IPV6)]
    records.delete_records(netfilter, listed)
    assert list_elements(host) == {}
    records.delete_records(netfilter, listed)


def test_newest_owner_has_the_record(netfilter, host):
    """The record of an address belongs to its newest owner, and the previous owner cannot delete it."""
    records.save_records(netfilter, POD)
    old = records.list_records_of(netfilter, POD)
    new = FirewallSpec("net", "new", "eth0", (IPV4,), zone="public")
    records.save_records(netfilter, new)
    records.delete_records(netfilter, old)
    assert records.list_records_of(netfilter, POD) == []
    assert records.list_records_of(netfilter, new) == [make_record(IPV4, "public", container_id="new")]


def test_stale_records(netfilter, host):
    """Records of a network's attachments that are not valid are stale, those of other networks are not."""
    records.save_records(netfilter, POD)
    records.save_records(netfilter, FirewallSpec("net", "two", "eth0", (ip_address("10.22.0.3"),)))
    records.save_records(netfilter, FirewallSpec("other", "cid", "eth0", (ip_address("10.33.0.3"),)))
    assert records.list_stale_records(netfilter, "net", [Attachment("cid", "eth0")]) == [
        make_record(ip_address("10.22.0.3"), container_id="two")
    ]
    assert records.list_stale_records(netfilter, "net", [Attachment("cid", "eth0"), Attachment("two", "eth0")]) == []
    assert len(records.list_stale_records(netfilter, "net", [Attachment("cid", "eth1")])) == 3


def test_records_that_nft_has_listed_and_loaded(netfilter, host, tmp_path):
    """A record is complete after `nft` has listed and loaded it, which keeps only its comment."""
    records.save_records(netfilter, POD)
    file = tmp_path / "rules"
    file.write_text("flush ruleset\n" + host.run("nft", "list", "ruleset"))
    host.run("nft", "-f", str(file))
    assert records.list_records_of(netfilter, POD) == [make_record(IPV4), make_record(IPV6)]
