#!/bin/bash
# The first process in user-mode Linux: mounts the file systems, then runs one command.
#
# One rule: programs in it cannot change the machine. The root file system is the machine's, read-only; writes go to
# memory, except for $PODWIRE_SHARED, which is mounted at /run/shared.

export PATH=/usr/sbin:/usr/bin:/sbin:/bin
project=${0%/tests/support/*}
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
[ -d "$project" ] || { mkdir -p "$project" && mount -t hostfs -o "ro,$project" project "$project"; } # it was in /tmp
mkdir -p /run/shared /dev/modules/lib/modules
mount -t hostfs -o "$PODWIRE_SHARED" shared /run/shared
mount --bind /usr/lib/uml/modules /dev/modules/lib/modules

# The nftables of this kernel have no NAT: an administrator would choose iptables-legacy.
cp -a /etc/alternatives /run/alternatives && mount --bind /run/alternatives /etc/alternatives
for tool in iptables ip6tables; do
    for suffix in "" -save -restore; do
        ln -sf "/usr/sbin/$tool-legacy$suffix" "/etc/alternatives/$tool$suffix"
    done
done

. "$project/tests/support/kernel_boot.sh"
