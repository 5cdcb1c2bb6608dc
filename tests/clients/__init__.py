"""The plugins with real container runtimes: podman, containerd's ctr and its CRI.

One rule: Debian's runtimes run podwire's files in /opt/cni/bin on a private machine (support/machine.py).
"""
