"""tap: a tap device in a pod, for a virtual machine or another program that reads and writes frames."""
