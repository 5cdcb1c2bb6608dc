"""The addresses of a cluster, as podwire-agent of this node reports them to the operator's tool."""
