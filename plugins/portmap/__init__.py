"""portmap: host ports that lead to a pod."""
