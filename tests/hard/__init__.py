"""Robustness of the plugins: kills, faults, storms, hostile input. Samples in `make test-all`, all in `make nightly`."""
