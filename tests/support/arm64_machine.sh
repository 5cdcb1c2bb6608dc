#!/bin/busybox sh
# The first process of the emulated machine: makes it a node, runs /script, powers off.
#
# One rule: modules are loaded on demand, as on a node; the script has busybox and what the test has put there.

/bin/busybox mkdir -p /sbin /usr/sbin /usr/bin
/bin/busybox --install -s
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
modprobe -a ipv6 br_netfilter # what no program asks for by its name
ip link set lo up
. /script
poweroff -f
