"""Collects the state of a node for a bug report: the parts, what is left out of them, and the archive."""
