# A VPN as wg-quick sets it up, and marks of the host for a second table: other packets than the pods'.
ip link add vpn0 type veth peer name vpn1; ip link set vpn0 up; ip link set vpn1 up; ip address add 198.51.100.1/24 dev vpn0
ip route add default dev vpn0 table 51820
ip rule add fwmark 0xca6c lookup 51820 priority 32764
ip rule add from all lookup main suppress_prefixlength 0 priority 32765
iptables -t mangle -A PREROUTING -i vpn0 -j MARK --set-mark 0xca6c
iptables -t mangle -A OUTPUT -m owner --uid-owner 65534 -j MARK --set-mark 7
ip rule add fwmark 7 lookup 700 priority 700
ip route add unreachable default table 700
