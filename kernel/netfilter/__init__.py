"""The packet filter: nftables over netlink, iptables on top of it, and the connections it tracks."""
