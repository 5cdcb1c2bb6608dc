"""NetworkPolicy in a plugin's verbs: the pod's record, ADD's wait for podwire-agent, the guard of the pod's port."""
