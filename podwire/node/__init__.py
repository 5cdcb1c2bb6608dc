"""This node as one value: its networks and attachments, what holds them in the kernel, and what is left of dead ones."""
