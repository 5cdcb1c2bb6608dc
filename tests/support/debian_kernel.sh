#!/bin/busybox sh
# The first process of the emulated machine, in the initrd: mounts the file systems, then runs one command.
#
# One rule: programs in it cannot change the machine. The test root, the project and the modules are mounted read-only
# over 9p; writes go to memory, except for the shared directory, at /run/shared.

/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
modprobe -a virtio_pci 9pnet_virtio 9p
mkdir /new
mount_9p() { # TAG DIRECTORY OPTIONS; cache=loose for files that nothing else changes
    [ -d "/new$2" ] || mkdir -p "/new$2" # the checkout may be below /tmp, which is an empty tmpfs here
    mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,$3" "$1" "/new$2"
}
mount_9p root / ro,cache=loose
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -t devtmpfs devtmpfs /new/dev
for directory in run root tmp var/tmp; do mount -t tmpfs tmpfs "/new/$directory"; done
mkdir -p /new/run/netns /new/run/lock
chmod 1777 /new/tmp /new/var/tmp /new/run/lock
mount_9p project "$PODWIRE_PROJECT" ro,cache=loose
mount_9p modules /dev/modules/lib/modules ro,cache=loose
mount_9p shared /run/shared cache=none
[ -z "$PODWIRE_REFERENCE" ] || mount_9p reference "$PODWIRE_REFERENCE" ro,cache=loose
umount /proc
exec switch_root /new /bin/bash -c ". '$PODWIRE_PROJECT/tests/support/kernel_boot.sh'"
