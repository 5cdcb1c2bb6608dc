#!/bin/bash
# Runs a command on the test root file system, in new network, mount, PID, IPC and UTS namespaces (root).
#
# One rule: the command sees the project's directory, the kernel, and nothing else of the machine: the root file system
# is read-only and the same everywhere, and every writable directory is empty and private. When the command ends, the
# kernel kills all processes that it has left running.
#
#     isolated.sh ROOT SCRATCH COMMAND...       SCRATCH: an empty directory, /tmp and /var/tmp inside
set -eu

if [ "$1" != --inside ]; then
    exec setpriv --pdeathsig=KILL unshare --net --mount --pid --ipc --uts --propagation private \
        --fork --kill-child -- env --default-signal "$0" --inside "$@"  # unshare ignores SIGTERM
fi

root=$2 scratch=$3 project=$PWD
shift 3
# Mount points, in every run the same, so that runs in parallel do not disturb each other.
mkdir -p "$root$project" ${REFERENCE:+"$root$REFERENCE"}
mount --bind "$root" "$root"
mount --bind "$project" "$root$project"
[ -z "${REFERENCE:-}" ] || mount --bind "$REFERENCE" "$root$REFERENCE"
mount -o remount,bind,ro "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount --rbind /dev dev
for directory in run root dev/shm; do mount -t tmpfs tmpfs "$directory"; done
mkdir run/netns run/lock
chmod 1777 "$scratch" run/lock
mount --bind "$scratch" tmp
mount --bind "$scratch" var/tmp
# A project below one of the new directories, such as /tmp, is hidden by them.
[ -e ".$project/Makefile" ] || { mkdir -p ".$project" && mount --bind "$project" ".$project"; }
hostname podwire-tests
# pivot_root, not chroot: in a chroot no process may create a user namespace.
pivot_root . mnt
cd "$project"
umount -l /mnt
# As process 1, bash reaps the processes whose parents have ended; SIGTERM needs a trap to have an effect on it.
# A command in the background would ignore SIGINT.
exec /bin/bash -c 'ip link set lo up; trap "exit 143" TERM; env --default-signal "$@" & wait $!' bash "$@"
