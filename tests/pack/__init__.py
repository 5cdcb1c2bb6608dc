"""Tests of the executable itself, whatever plugin it runs as."""
