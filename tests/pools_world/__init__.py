"""Nodes with the real manager and the real host-local, one store, and everything that goes wrong around them."""
