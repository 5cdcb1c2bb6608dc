"""The features of the running kernel, for `@pytest.mark.needs("vlan_filtering", "no fq")`.

One rule: a feature is probed by using it in a temporary namespace; no code depends on kernel versions.
"""

import functools
import os
import subprocess
from collections.abc import Iterable

_ADD_LINKS = "ip link add l0 type veth peer l1; ip link add"
_NAT = "-t nat -A POSTROUTING -m comment --comment c -j MASQUERADE"
_QDISC = "ip link add l0 type veth peer l1; tc qdisc add dev l0"

# Shell commands that succeed if the kernel has the feature; run with -e in a new network namespace.
FEATURES = {
    "vlan_filtering": "ip link add b0 type bridge vlan_filtering 1; ip -d link show b0 | grep -q 'vlan_filtering 1'",
    "vlan_device": f"{_ADD_LINKS} link l0 name l0.5 type vlan id 5",
    "dummy": "ip link add d0 type dummy",
    "macvlan": f"{_ADD_LINKS} link l0 name m0 type macvlan",
    "macvlan_queue": f"{_ADD_LINKS} link l0 name m0 type macvlan; ip -d link show m0 | grep -q bcqueuelen",
    "ipvlan": f"{_ADD_LINKS} link l0 name i0 type ipvlan",
    "vrf": "ip link add vrf0 type vrf table 5",
    "ifb": "ip link add ifb0 type ifb",
    "br_netfilter": "test -e /proc/sys/net/bridge/bridge-nf-call-iptables",
    "nft_bridge": "nft add table bridge t; nft 'add chain bridge t c { type filter hook prerouting priority 0; }'",
    "nft_inet": "nft add table inet t; nft 'add chain inet t c { type filter hook forward priority 0; }'",
    "nft_nat": "nft add table inet t; nft 'add chain inet t c { type nat hook postrouting priority 100; }';"
    "nft add rule inet t c masquerade",
    "nft_set_types": "nft add table inet t; nft 'add set inet t s { type ipv4_addr; }';"
    "! nft 'add set inet t s { type ipv6_addr; }'",  # otherwise another type is accepted, and ignored
    "nft_queue": "nft add table bridge t; nft 'add chain bridge t c { type filter hook forward priority 0; }';"
    "nft add rule bridge t c queue num 7",
    "iptables_nft_nat": f"iptables-nft {_NAT}; ip6tables-nft {_NAT}",
    "iptables_legacy_nat": f"iptables-legacy {_NAT}; ip6tables-legacy {_NAT}",
    "tbf": f"{_QDISC} root tbf rate 1mbit burst 10kb latency 10ms",
    "htb": f"{_QDISC} root htb",
    "fq": f"{_QDISC} root fq",
    "netem": f"{_QDISC} root netem delay 1ms",
    "matchall": f"{_QDISC} clsact; tc filter add dev l0 ingress matchall action pass",
    "sctp": "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)'",
    "time_namespace": "unshare --time true",
    "user_mode_linux": "command -v linux.uml; ! grep PODWIRE_ /proc/cmdline",  # it cannot run in itself
    "private_kernel": "grep PODWIRE_ /proc/cmdline",  # kernel_boot booted it: modules can be removed, the clock set
    # Not a feature of the network: strace can make system calls fail.
    "syscall_injection": "test $(strace -o /dev/null -e inject=geteuid:retval=77 id -u) = 77",
}

_NO = "no "  # before the name of a feature
AGAIN = 32  # `make test-all` repeats on the second kernel each 32nd of the tests that the first kernel can run


@functools.cache
def has(feature: str) -> bool:
    """Returns whether the running kernel has a feature of FEATURES, or "no FEATURE"; KeyError for an unknown one."""
    if feature.startswith(_NO):
        return not has(feature.removeprefix(_NO))
    probe = ["unshare", "--net", "sh", "-ec", FEATURES[feature]]
    return subprocess.run(probe, check=False, capture_output=True, timeout=60).returncode == 0


def lacking(needed: Iterable[str]) -> str:
    """Returns a message if the running kernel lacks one of the needed features, "" if it has all of them.

    Also "" without root, which probing needs: such tests then report that they need root.
    """
    if os.geteuid() != 0:
        return ""
    missing = next((name for name in needed if not has(name)), "")
    what = missing.removeprefix(_NO) if missing.startswith(_NO) else f"no {missing}"
    return f"this kernel ({os.uname().release}) has {what}" if missing else ""


def list_lacking() -> list[str]:
    """Returns everything that a test may need and the running kernel lacks."""
    return [name if not has(name) else f"{_NO}{name}" for name in FEATURES]
