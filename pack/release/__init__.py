"""Releases: archives, packages and images of built executables.

One rule: the same executables and the same SOURCE_DATE_EPOCH give the same bytes, on every machine and at any time.
"""
