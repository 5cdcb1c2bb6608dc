"""NetworkPolicy: decides which connections the cluster's policies allow, and enforces them with a packet filter."""
