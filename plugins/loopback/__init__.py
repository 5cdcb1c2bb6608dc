"""loopback: sets `lo` up in the container."""
