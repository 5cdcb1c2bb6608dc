"""What is published: archives, packages and images of the executables that are built already.

One rule: the same executables and the same moment give the same bytes, whoever packs them, where and when.
"""
