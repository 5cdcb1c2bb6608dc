"""Tests of deploy/: the manifests, the effect of their containers on a node, the image."""
