"""The state of the machine that a self-test must not change, as lines of text that can be compared."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kernel import address, link, route, sysctl
from kernel.netfilter import nft
from kernel.rtnl import Socket
from podwire.selftest.facts import read_text

# Settings that plugins write, and directories in which plugins and runtimes keep files.
_SETTINGS = (
    *("ipv4/ip_forward", "ipv4/conf/all/route_localnet", "ipv4/conf/all/rp_filter", "ipv4/conf/all/arp_filter"),
    *("ipv6/conf/all/forwarding", "ipv6/conf/all/disable_ipv6", "bridge/bridge-nf-call-iptables"),
)
_DIRECTORIES = ("/etc/cni", "/opt/cni", "/var/lib/cni", "/run/cni", "/run/netns", "/usr/lib/cni")
_MOST_FILES = 20_000


def read_state() -> set[str]:
    """Returns the state as lines, such as "link 2 eth0 up"; raises KernelError."""
    return {*_network(), *_settings(), *_mounts(), *_files()}


def _network() -> Iterator[str]:
    with Socket() as socket:
        names = {}
        for one in link.list_all(socket):
            names[one.index] = one.name
            yield f"link {one.index} {one.name} {'up' if one.is_up else 'down'}, MTU {one.mtu}, master {one.master}"
        for index, assigned in address.list_by_link(socket).items():
            for item in assigned:
                yield f"address {item.address} of {names.get(index, index)}"
        for version in (4, 6):
            for each in route.list_unicast(socket, version):
                yield f"route {each.dst} via {each.gw} of {names.get(each.index, each.index)}, table {each.table}"
    with nft.NftSocket() as socket:
        yield f"generation {nft.retry_with_generation(socket, lambda generation: generation)} of nftables' rules"
    for name in ("ip_tables_names", "ip6_tables_names"):
        yield f"tables of iptables-legacy in {name}: {' '.join(sorted(read_text(f'/proc/net/{name}').split()))}"


def _settings() -> Iterator[str]:
    for name in _SETTINGS:
        try:
            yield f"sysctl net/{name} = {sysctl.get(name)}"
        except OSError:
            yield f"sysctl net/{name} does not exist"


def _mounts() -> Iterator[str]:
    for line in read_text("/proc/self/mountinfo").splitlines():
        yield f"mount {line.split()[4]} ({line.partition(' - ')[2]})"


def _files() -> Iterator[str]:
    number = 0
    for top in _DIRECTORIES:
        for directory, _, names in os.walk(top):
            for name in (".", *names):
                number += 1
                path = os.path.join(directory, name)
                if number > _MOST_FILES:
                    return
                try:
                    status = os.lstat(path)
                except OSError:
                    continue
                yield f"file {path}: {status.st_size} bytes, mode {status.st_mode:o}, written {status.st_mtime_ns}"
