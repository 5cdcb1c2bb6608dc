"""firewall: opens the host firewall for a pod."""
