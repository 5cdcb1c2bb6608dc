"""What plugins share about an attachment: its veth pair, its sandbox, masquerading, libcni's cache of its result."""
