"""IP masquerade of an attachment: traffic that leaves its subnet gets the node's address."""
