"""`pyroute2` without the modules that its own __init__ loads (see kernel.codec)."""
