# Rules as Calico's Felix writes them for its own pods (cali...): marks, drops at the end, a policy of its own.
iptables-restore --noflush <<'R'
*filter
:cali-FORWARD - [0:0]
:cali-INPUT - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-to-wl-dispatch - [0:0]
:cali-tw-cali12345678901 - [0:0]
:cali-wl-to-host - [0:0]
:cali-to-hep-forward - [0:0]
-A INPUT -m comment --comment "cali:Cz_u1IQiXIMmKD4c" -j cali-INPUT
-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-INPUT -i cali+ -m comment --comment "cali:x" -g cali-wl-to-host
-A cali-INPUT -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-wl-to-host -m comment --comment "cali:y" -j cali-from-wl-dispatch
-A cali-FORWARD -m comment --comment "cali:vjrMJCRpqwy5oRoX" -j MARK --set-xmark 0x0/0xe0000
-A cali-FORWARD -i cali+ -m comment --comment "cali:8ZoYfO5HKXWbB3pk" -j cali-from-wl-dispatch
-A cali-FORWARD -o cali+ -m comment --comment "cali:jdEuaPBe14V2hutn" -j cali-to-wl-dispatch
-A cali-FORWARD -m comment --comment "cali:MH9kMp5aNICL-Olv" -j cali-to-hep-forward
-A cali-from-wl-dispatch -m comment --comment "Unknown interface" -j DROP
-A cali-to-wl-dispatch -o cali12345678901 -g cali-tw-cali12345678901
-A cali-to-wl-dispatch -m comment --comment "Unknown interface" -j DROP
-A cali-tw-cali12345678901 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-tw-cali12345678901 -m conntrack --ctstate INVALID -j DROP
-A cali-tw-cali12345678901 -m comment --comment "Drop if no profiles matched" -j DROP
COMMIT
*raw
:cali-PREROUTING - [0:0]
-A PREROUTING -m comment --comment "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING
-A cali-PREROUTING -j MARK --set-xmark 0x0/0xf0000
-A cali-PREROUTING -i cali+ -j MARK --set-xmark 0x40000/0x40000
-A cali-PREROUTING -m mark --mark 0x10000/0x10000 -j ACCEPT
COMMIT
R
