"""vlan: a VLAN interface (802.1Q) of an interface of the host, in the pod."""
