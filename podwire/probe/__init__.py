"""Tests of the paths of pods with real packets: which paths a pod has, and whether each carries packets."""
