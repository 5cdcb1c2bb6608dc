# Tailscale, and the rule of wg-quick in raw.
ip link add tailscale0 type veth peer name ts1; ip addr add 100.64.0.1/32 dev tailscale0; ip link set ts1 up; ip link set tailscale0 mtu 1280 up
ip route add 100.64.0.0/10 dev tailscale0 table 52; ip route add throw 127.0.0.0/8 table 52
ip rule add pref 5210 fwmark 0x80000/0xff0000 lookup main; ip rule add pref 5230 fwmark 0x80000/0xff0000 lookup default; ip rule add pref 5250 fwmark 0x80000/0xff0000 unreachable; ip rule add pref 5270 lookup 52
iptables-restore -n <<E
*filter
:ts-forward - [0:0]
:ts-input - [0:0]
-A INPUT -j ts-input
-A FORWARD -j ts-forward
-A ts-forward -i tailscale0 -j MARK --set-xmark 0x40000/0xff0000
-A ts-forward -m mark --mark 0x40000/0xff0000 -j ACCEPT
-A ts-forward -s 100.64.0.0/10 -o tailscale0 -j DROP
-A ts-forward -o tailscale0 -j ACCEPT
-A ts-input -s 100.64.0.1/32 -i lo -j ACCEPT
-A ts-input -s 100.115.92.0/23 ! -i tailscale0 -j RETURN
-A ts-input -s 100.64.0.0/10 ! -i tailscale0 -j DROP
COMMIT
*raw
-A PREROUTING ! -i wg0 -d 10.66.0.2/32 -m addrtype ! --src-type LOCAL -j DROP
COMMIT
E
