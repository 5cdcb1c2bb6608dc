"""The way of a packet through the node: sends a marked packet, observes it, and names what loses it."""
