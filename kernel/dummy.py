"""Dummy interfaces: they have addresses and discard every packet that is sent on them."""

from __future__ import annotations

from kernel.codec import LinkMessage
from kernel.link import RTM_NEWLINK
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Request
from kernel.wire import Attributes


def create_request(name: str) -> Request:
    """Returns a request that creates a dummy interface, down; it fails with EEXIST if the name is used."""
    attributes: Attributes = [("IFLA_IFNAME", name), ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "dummy")]})]
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    return Request(f'create dummy "{name}"', LinkMessage, RTM_NEWLINK, flags, {}, attributes)
