ip rule add priority 100 fwmark 1 lookup 100; ip route add local default dev lo table 100
iptables -t mangle -A PREROUTING -i cni0 -p tcp ! -d 10.44.0.0/24 -j TPROXY --on-port 7893 --on-ip 127.0.0.1 --tproxy-mark 1/1
