"""A model of machines, store and administrator around agent/pools/block_protocol.py, and a search of its states."""
