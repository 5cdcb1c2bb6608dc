"""static: addresses that the configuration or the runtime names."""
