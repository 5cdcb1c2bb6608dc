"""NetworkPolicy in plugins: writes the pod's record, guards its port, and waits for podwire-agent in ADD."""
