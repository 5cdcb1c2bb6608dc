# Two uplinks: the second one with a higher metric, and pods that leave by it, with loose rp_filter.
ip link add out2 type veth peer name far2; ip link set out2 up; ip link set far2 up; ip address add 198.51.100.1/24 dev out2
ip route add default via 198.51.100.2 metric 200
ip rule add from 198.51.100.1 lookup 200 priority 200
ip route add default via 198.51.100.2 table 200
sysctl -qw net/ipv4/conf/out2/rp_filter=2
ip rule add from 10.44.0.0/24 lookup 201 priority 201
ip route add 10.44.0.0/24 dev cni0 table 201; ip route add default via 198.51.100.2 table 201
