# firewalld 1.3 with nftables: default zone public on the uplink, the pods' bridge in zone trusted.
nft -f - <<'R'
table inet firewalld {
	ct helper helper-netbios-ns-udp { type "netbios-ns" protocol udp; l3proto ip; }
	chain filter_IN_public { jump filter_IN_public_allow; meta l4proto { icmp, ipv6-icmp } accept; reject with icmpx admin-prohibited; }
	chain filter_IN_public_allow { tcp dport 22 accept; ip6 daddr fe80::/64 udp dport 546 accept; }
	chain filter_IN_trusted { accept; }
	chain filter_FWD_public { reject with icmpx admin-prohibited; }
	chain filter_FWD_trusted { accept; }
	chain filter_FORWARD_POLICIES {
		iifname "cni0" oifname "cni0" jump filter_FWD_trusted
		iifname "cni0" jump filter_FWD_trusted
		oifname "cni0" jump filter_FWD_trusted
		jump filter_FWD_public
		reject with icmpx admin-prohibited
	}
	chain filter_INPUT_POLICIES { iifname "cni0" jump filter_IN_trusted; jump filter_IN_public; reject with icmpx admin-prohibited; }
	chain mangle_PREROUTING { type filter hook prerouting priority mangle + 10; policy accept; }
	chain nat_PREROUTING { type nat hook prerouting priority dstnat + 10; policy accept; }
	chain filter_PREROUTING {
		type filter hook prerouting priority filter + 10; policy accept;
		icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
		meta nfproto ipv6 fib saddr . mark . iif oif missing drop
	}
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_INPUT_POLICIES
	}
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24 } reject with icmpv6 addr-unreachable
		jump filter_FORWARD_POLICIES
	}
	chain filter_OUTPUT { type filter hook output priority filter + 10; policy accept; ct state { established, related } accept; oifname "lo" accept; ip6 daddr { ::/96 } reject with icmpv6 addr-unreachable; }
}
R
