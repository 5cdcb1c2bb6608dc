"""Checks network configurations without starting a pod.

The plugins' and libcni's own parsers find what they refuse; this package finds what they cannot see (other
files, misspelt names, missing keys), and the position in the text.
"""
