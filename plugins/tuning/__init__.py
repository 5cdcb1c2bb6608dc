"""tuning: sysctls and settings of a pod's interface."""
