"""bridge: a veth pair between the sandbox and a bridge on the host."""
