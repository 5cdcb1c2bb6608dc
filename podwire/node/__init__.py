"""The node as one value: networks and attachments, what holds them in the kernel, and leaked objects."""
