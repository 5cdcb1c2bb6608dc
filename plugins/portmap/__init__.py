"""portmap: publishes host ports of a pod."""
