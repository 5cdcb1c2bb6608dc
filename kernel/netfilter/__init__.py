"""The packet filter: nftables over netlink, iptables, and connection tracking."""
