"""Verbs run by hand: calls a network's plugins as libcni does, or prints their changes without making them."""
