"""Tests of what is published: archives, packages, images, and what is said of them."""
