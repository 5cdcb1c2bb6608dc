"""NetworkPolicy in the verbs of a plugin: the pod's record, ADD's wait for podwire-agent, the guard of the pod's port."""
