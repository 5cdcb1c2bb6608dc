"""Addresses for a whole cluster: pools whose blocks the nodes share. docs/pools.md is the manual."""
