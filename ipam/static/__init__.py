"""static: returns the addresses of the configuration or of the runtime."""
