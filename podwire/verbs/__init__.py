"""Verbs run by hand: a network's plugins called as libcni calls them, or their changes told without being made."""
