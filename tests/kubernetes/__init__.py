"""A Kubernetes cluster of namespaces with podwire as its network, and upstream's tests on it."""
