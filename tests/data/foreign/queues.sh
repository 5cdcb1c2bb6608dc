# Programs that decide in user space, whose queues are passed while these do not run, and a limit of new connections.
iptables -I FORWARD -j NFQUEUE --queue-num 100 --queue-bypass
iptables -t mangle -I POSTROUTING -m conntrack --ctstate NEW -j NFQUEUE --queue-num 0 --queue-bypass
iptables -A INPUT -p tcp --syn -m limit --limit 25/s -j ACCEPT
