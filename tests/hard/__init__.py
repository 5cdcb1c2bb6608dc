"""Robustness of the plugins: kills, faults, storms, hostile input: samples, and all of it in `make nightly`."""
