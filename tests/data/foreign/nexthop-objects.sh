ip nexthop add id 10 via 192.0.2.2 dev out0; ip route replace default nhid 10
ip nexthop add id 99 blackhole; ip route add 203.0.114.0/24 nhid 99
ip route add unreachable 192.168.0.0/16
