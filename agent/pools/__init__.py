"""Addresses for a whole cluster: the blocks of a space's pools, which the agents of the nodes share."""
