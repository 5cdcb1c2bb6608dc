"""IPAM plugins: they allocate addresses and never use a network interface."""
