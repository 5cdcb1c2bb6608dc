"""The owner of the firewall's elements in nftables' sets (plugins.firewall.nftables_rules)."""

import pytest

from cni.conf import Attachment
from kernel.netfilter.nft_set import Element
from plugins.firewall.nftables_rules import ElementFilter, userdata
from plugins.firewall.spec import FirewallSpec


@pytest.mark.parametrize(("comment_bytes", "has_owner"), [(127, True), (128, False), (129, False)])
def test_comment_that_may_be_truncated_names_no_owner(comment_bytes, has_owner):
    """GC keeps an element that `nft` has loaded with a truncated comment, since its pod may be running."""
    container_id = "c" * (comment_bytes - len("net: net, if: eth0, id: "))
    data = userdata(FirewallSpec("net", container_id, "eth0"))
    loaded = Element(b"key", data[: 2 + data[1]])  # `nft` drops the owner ID after the comment
    assert not ElementFilter.stale("net", [Attachment(container_id, "eth0")]).has(loaded)
    assert ElementFilter.stale("net", []).has(loaded) is has_owner
