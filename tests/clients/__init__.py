"""The plugins under real container runtimes: podman, containerd's ctr and its CRI.

One rule: what runs is Debian's runtimes with our files in /opt/cni/bin, on a machine of their own (support/machine.py).
"""
