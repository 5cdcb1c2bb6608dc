"""Tests of the release: archives, packages, images, and their descriptions."""
