"""Tests of deploy/: the manifests, what their containers do on a node, the image."""
