"""What is published: archives, packages and images of the executables that are built already.

One rule: the same executables and the same time give the same bytes, on every machine and at any later time.
"""
