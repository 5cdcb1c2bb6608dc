"""NetworkPolicy: which packets of the node's pods the cluster's policies allow, and the filter that enforces it."""
