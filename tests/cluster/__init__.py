"""Tests of the agent with API servers: a double, and a real kube-apiserver with etcd."""
