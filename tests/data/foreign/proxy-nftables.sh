ip rule add priority 100 fwmark 1 lookup 100; ip route add local default dev lo table 100
nft 'add table inet clash; add chain inet clash pre { type filter hook prerouting priority mangle; }; add rule inet clash pre ip daddr { 127.0.0.0/8, 10.44.0.0/24, 192.0.2.1 } return; add rule inet clash pre meta l4proto { tcp, udp } tproxy ip to 127.0.0.1:7893 meta mark set 1 accept'
