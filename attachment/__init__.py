"""Code that plugins share for attachments: veth pair, sandbox, forwarding, masquerading, libcni's result cache."""
