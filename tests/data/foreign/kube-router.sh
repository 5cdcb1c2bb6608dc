# A NetworkPolicy of kube-router that allows what a pod does.
iptables -N KUBE-ROUTER-FORWARD; iptables -N KUBE-POD-FW-A; iptables -N KUBE-NWPLCY-D
iptables -I FORWARD 1 -j KUBE-ROUTER-FORWARD
iptables -A KUBE-ROUTER-FORWARD -s 10.44.0.3/32 -j KUBE-POD-FW-A; iptables -A KUBE-ROUTER-FORWARD -d 10.44.0.3/32 -j KUBE-POD-FW-A
iptables -A KUBE-POD-FW-A -m conntrack --ctstate INVALID -j DROP
iptables -A KUBE-POD-FW-A -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables -A KUBE-POD-FW-A -j KUBE-NWPLCY-D; iptables -A KUBE-NWPLCY-D -j MARK --set-xmark 0x10000/0x10000
iptables -A KUBE-POD-FW-A -m mark ! --mark 0x10000/0x10000 -j REJECT
iptables -A KUBE-POD-FW-A -j MARK --set-xmark 0x0/0x10000; iptables -A KUBE-POD-FW-A -j MARK --set-xmark 0x20000/0x20000
