"""Tests of the executable for 64-bit ARM, in emulation."""
