"""The CNI specification as Python values, and the one way in.

One rule: this package knows the protocol and nothing of Linux; it imports the standard library only.
"""
