"""loopback: brings up `lo` in the sandbox."""
