"""macvlan: an interface with a MAC address of its own on a network interface of the host."""
