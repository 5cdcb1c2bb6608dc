"""Side-by-side measurements against the reference plugins."""
