"""firewall: lets a pod's packets pass the host's firewall."""
