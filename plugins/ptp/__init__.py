"""ptp: a routed veth pair between a pod and the host."""
