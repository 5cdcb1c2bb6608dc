"""What the kernel does with a packet, computed from facts without sending anything."""
