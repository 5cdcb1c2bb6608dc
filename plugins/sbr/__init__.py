"""sbr: source based routing, a routing table for each address of a pod's interface."""
