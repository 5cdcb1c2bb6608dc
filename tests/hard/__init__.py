"""What the plugins survive: kills, faults, storms of processes, hostile input. A sample in `make test`, all in `make nightly`."""
