"""dhcp: leases addresses from a DHCP server, through a daemon that maintains the leases."""
