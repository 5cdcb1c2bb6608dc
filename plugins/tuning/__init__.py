"""tuning: sets sysctls in the pod and attributes of its interface."""
