"""Hostile input by the thousand: what is told to the plugins is changed at random, and they must never be at a loss."""
