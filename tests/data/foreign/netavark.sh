# netavark 1.12 with nftables: podman's own network beside the pods'.
ip link add podman0 type bridge; ip address add 10.88.0.1/16 dev podman0; ip link set podman0 up
nft -f - <<'R'
table inet netavark {
	chain INPUT { type filter hook input priority filter; policy accept; ip saddr 10.88.0.0/16 meta l4proto { tcp, udp } th dport 53 accept; }
	chain NETAVARK-ISOLATION-1 { }
	chain NETAVARK-ISOLATION-2 { oifname "podman0" drop; jump NETAVARK-ISOLATION-3; }
	chain NETAVARK-ISOLATION-3 { }
	chain NETAVARK-HOSTPORT-SETMARK { meta mark set meta mark or 0x2000; }
	chain nv_2f259bab_10_88_0_0_nm16 { ip daddr 10.88.0.0/16 accept; ip daddr != 224.0.0.0/4 masquerade; }
	chain nv_2f259bab_10_88_0_0_nm16_dnat { ip saddr 10.88.0.0/16 tcp dport 9091 jump NETAVARK-HOSTPORT-SETMARK; tcp dport 9091 dnat ip to 10.88.0.2:80; }
	chain NETAVARK-HOSTPORT-DNAT { tcp dport 9091 jump nv_2f259bab_10_88_0_0_nm16_dnat; }
	chain FORWARD {
		type filter hook forward priority filter; policy accept;
		ct state invalid drop
		jump NETAVARK-ISOLATION-1
		ip daddr 10.88.0.0/16 ct state established,related accept
		ip saddr 10.88.0.0/16 accept
	}
	chain POSTROUTING { type nat hook postrouting priority srcnat; policy accept; meta mark & 0x2000 == 0x2000 masquerade; ip saddr 10.88.0.0/16 jump nv_2f259bab_10_88_0_0_nm16; }
	chain PREROUTING { type nat hook prerouting priority dstnat; policy accept; fib daddr type local jump NETAVARK-HOSTPORT-DNAT; }
	chain OUTPUT { type nat hook output priority -100; policy accept; fib daddr type local jump NETAVARK-HOSTPORT-DNAT; }
}
R
