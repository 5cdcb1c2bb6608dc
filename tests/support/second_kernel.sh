#!/bin/bash
# The first process in user-mode Linux: sets it up as a node with all modules, runs one command, powers off.
#
# One rule: programs in it cannot change the machine. The root file system is the machine's, read-only; writes go to
# memory, except for $PODWIRE_SHARED, which is mounted at /run/shared and contains the command and its status.

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
export HOME=/run TMPDIR=/run/tmp
project=${0%/tests/support/*}
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
[ -d "$project" ] || { mkdir -p "$project" && mount -t hostfs -o "ro,$project" project "$project"; } # it was in /tmp
mkdir -p /dev/pts /dev/shm /dev/modules/lib/modules /run/shared /run/tmp
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t hostfs -o "$PODWIRE_SHARED" shared /run/shared

# Modules are loaded on demand, as on a node, from a directory that modprobe does not search; in /dev: tests hide /run.
mount --bind /usr/lib/uml/modules /dev/modules/lib/modules
printf '#!/bin/sh\nexec modprobe -d /dev/modules "$@"\n' >/dev/modules/modprobe
chmod 755 /dev/modules/modprobe
echo /dev/modules/modprobe >/proc/sys/kernel/modprobe
modprobe -d /dev/modules -a ipv6 br_netfilter tun # no program requests these by name

# The nftables of this kernel have no NAT: an administrator would choose iptables-legacy.
cp -a /etc/alternatives /run/alternatives && mount --bind /run/alternatives /etc/alternatives
for tool in iptables ip6tables; do
    for suffix in "" -save -restore; do
        ln -sf "/usr/sbin/$tool-legacy$suffix" "/etc/alternatives/$tool$suffix"
    done
done

stty -opost -echo cols 120 </dev/ttyS0
bash /run/shared/command </dev/null >/dev/ttyS0 2>&1
echo $? >/run/shared/status
echo o >/proc/sysrq-trigger
sleep 60
