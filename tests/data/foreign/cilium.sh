# Rules as Cilium writes them: marks of its proxy, NOTRACK for packets that its own programs have marked.
iptables-restore --noflush <<'R'
*filter
:CILIUM_FORWARD - [0:0]
:CILIUM_INPUT - [0:0]
:CILIUM_OUTPUT - [0:0]
-A INPUT -m comment --comment "cilium-feeder: CILIUM_INPUT" -j CILIUM_INPUT
-A FORWARD -m comment --comment "cilium-feeder: CILIUM_FORWARD" -j CILIUM_FORWARD
-A OUTPUT -m comment --comment "cilium-feeder: CILIUM_OUTPUT" -j CILIUM_OUTPUT
-A CILIUM_FORWARD -o cilium_host -m comment --comment "cilium: any->cluster on cilium_host forward accept" -j ACCEPT
-A CILIUM_FORWARD -i cilium_host -j ACCEPT
-A CILIUM_FORWARD -i lxc+ -j ACCEPT
-A CILIUM_INPUT -m mark --mark 0x200/0xf00 -j ACCEPT
-A CILIUM_OUTPUT -m mark ! --mark 0xe00/0xf00 -m mark ! --mark 0xd00/0xf00 -j MARK --set-xmark 0xc00/0xf00
COMMIT
*raw
:CILIUM_PRE_raw - [0:0]
-A PREROUTING -m comment --comment "cilium-feeder: CILIUM_PRE_raw" -j CILIUM_PRE_raw
-A CILIUM_PRE_raw -m mark --mark 0x200/0xf00 -j CT --notrack
-A CILIUM_PRE_raw -d 10.200.0.0/16 -i lxc+ -j CT --notrack
COMMIT
*nat
:CILIUM_POST_nat - [0:0]
-A POSTROUTING -m comment --comment "cilium-feeder: CILIUM_POST_nat" -j CILIUM_POST_nat
-A CILIUM_POST_nat -s 10.200.0.0/24 ! -d 10.200.0.0/16 ! -o cilium_+ -j MASQUERADE
COMMIT
R
ip rule add fwmark 0x200/0xf00 lookup 2004 priority 9
ip route add local 0.0.0.0/0 dev lo table 2004
