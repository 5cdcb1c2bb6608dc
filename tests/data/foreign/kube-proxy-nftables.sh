# kube-proxy 1.31 in nftables mode.
sysctl -qw net/bridge/bridge-nf-call-iptables=1 || true
nft -f - <<'R'
table ip kube-proxy {
	set cluster-ips { type ipv4_addr; elements = { 10.96.0.1, 10.96.7.7 }; }
	set nodeport-ips { type ipv4_addr; elements = { 192.0.2.1 }; }
	chain reject-chain { reject; }
	chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
	chain endpoint-A { ip saddr 10.44.0.2 jump mark-for-masquerade; meta l4proto tcp dnat to 10.44.0.2:8443; }
	chain endpoint-B { meta l4proto tcp dnat to 10.45.0.2:8443; }
	chain service-A {
		ip daddr 10.96.0.1 tcp dport 443 ip saddr != 10.44.0.0/24 jump mark-for-masquerade
		numgen random mod 2 vmap { 0 : goto endpoint-A, 1 : goto endpoint-B }
	}
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.7.7 . tcp . 80 : goto reject-chain }; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; elements = { tcp . 31999 : goto reject-chain }; }
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.1 . tcp . 443 : goto service-A }; }
	map service-nodeports { type inet_proto . inet_service : verdict; elements = { tcp . 30080 : goto service-A }; }
	chain cluster-ips-check {
		ip daddr @cluster-ips reject
	}
	chain firewall-check { }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
	chain services {
		ip daddr . meta l4proto . th dport vmap @service-ips
		ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
	}
	chain filter-prerouting-pre-dnat { type filter hook prerouting priority dstnat - 10; ct state new jump firewall-check; }
	chain filter-forward { type filter hook forward priority -110; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }
	chain filter-input { type filter hook input priority -110; ct state new jump nodeport-endpoints-check; ct state new jump service-endpoints-check; }
	chain filter-output { type filter hook output priority -110; ct state new jump service-endpoints-check; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain masquerading { meta mark and 0x4000 == 0 return; meta mark set meta mark xor 0x4000; masquerade fully-random; }
	chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
}
R
