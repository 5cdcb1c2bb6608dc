"""podwire-agent: the long-running program of a cluster's node. The only package that uses TLS, Kubernetes and etcd."""
