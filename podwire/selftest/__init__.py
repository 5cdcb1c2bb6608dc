"""`podwire selftest`: tries every plugin in private namespaces, with real packets, and describes the machine."""
