"""Masquerading of an attachment: source NAT of traffic that leaves its subnet to the node's address."""
