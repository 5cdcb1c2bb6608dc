"""ipvlan: an interface of the pod that shares the MAC address of an interface of the host."""
