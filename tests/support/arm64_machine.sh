#!/bin/busybox sh
# The first process of the emulated machine: sets it up as a node, runs /script, powers off.
#
# One rule: modules are loaded on demand, as on a node; the script can use busybox and the test's files.

/bin/busybox mkdir -p /sbin /usr/sbin /usr/bin
/bin/busybox --install -s
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
modprobe -a ipv6 br_netfilter # no program requests these by name
ip link set lo up
. /script
poweroff -f
