ip link add wg0 type veth peer name wg1; ip link set wg0 up; ip link set wg1 up
ip route add default dev wg0 table 51820; ip rule add priority 32765 not fwmark 51820 lookup 51820
ip rule add priority 32764 lookup main suppress_prefixlength 0
