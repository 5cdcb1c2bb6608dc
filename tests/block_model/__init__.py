"""A model of machines, store and administrator around agent/block_protocol.py, and a search through all its states."""
