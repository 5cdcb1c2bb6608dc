"""The CNI specification as Python values, and the entry point of every plugin (skel.run).

This package knows the protocol and nothing of Linux; it imports the standard library only.
"""
