#!/bin/sh
# Installs missing Debian packages, as root: `make` needs programs, not services.
#
# One rule: none of their services is started, neither now (policy-rc.d) nor at the next boot (disabled). A killed run
# leaves a policy that allows everything, and the next run removes it.
#
#     install_packages.sh PACKAGE...        nothing to do if all are installed; waits for other programs that use apt
set -eu

progress="${0%/*}/progress.sh installing"
policy=/usr/sbin/policy-rc.d saved=/usr/sbin/policy-rc.d.podwire-saved
# `apt-get update` does not wait for its lock: one build at a time uses apt, also of those in other checkouts.
[ ! -d /var/lib/dpkg ] || { exec 9</var/lib/dpkg; flock 9; }
list_installed() { dpkg-query --show --showformat '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null | sed -n 's/ installed$//p'; }

missing=
for package; do [ -n "$(list_installed "$package")" ] || missing="$missing $package"; done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Missing Debian packages. As root: apt-get install$missing" >&2
    exit 1
fi
echo "installing (a minute):$missing"

restore_policy() {
    rm -f $policy
    [ ! -e $saved ] || mv $saved $policy
}
if [ -e $saved ]; then restore_policy; fi
[ ! -e $policy ] || mv $policy $saved
trap restore_policy EXIT
trap 'exit 143' TERM INT HUP
cat >$policy <<END
#!/bin/sh
# While podwire's build installs packages, no service is started.
[ ! -d /proc/$$ ] || exit 101
END
chmod 755 $policy

before=$(list_installed '*')
$progress apt-get -qq -o APT::Sandbox::User=root update 9<&-
DEBIAN_FRONTEND=noninteractive $progress apt-get -qq -o APT::Sandbox::User=root -o DPkg::Lock::Timeout=600 \
    install --no-install-recommends $missing >/dev/null 9<&-
for package in $(list_installed '*' | grep --fixed-strings --line-regexp --invert-match "$before"); do
    for file in $(dpkg --listfiles "$package"); do
        case $file in
        */systemd/system/*@.*) ;;
        */systemd/system/*.service | */systemd/system/*.socket | */systemd/system/*.timer)
            # The variable: it works for scripts of packages only.
            DPKG_MAINTSCRIPT_PACKAGE=$package deb-systemd-helper --quiet disable "${file##*/}" ;;
        /etc/init.d/*) update-rc.d "${file##*/}" disable ;;
        esac
    done
done
