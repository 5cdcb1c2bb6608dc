# ip-masq-agent: private networks are not masqueraded by it.
iptables -t nat -N IP-MASQ-AGENT; iptables -t nat -I POSTROUTING -m comment --comment "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to our custom IP-MASQ-AGENT chain" -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT
for n in 169.254.0.0/16 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16; do iptables -t nat -A IP-MASQ-AGENT -d $n -m comment --comment "ip-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN; done
iptables -t nat -A IP-MASQ-AGENT -m comment --comment "ip-masq-agent: outbound traffic is subject to MASQUERADE (must be last in chain)" -j MASQUERADE
