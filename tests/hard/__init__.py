"""Robustness of the plugins: kills, faults, storms, hostile input. A sample in `make test-all`, all in `make nightly`."""
