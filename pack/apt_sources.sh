#!/bin/sh
# Prints lines of a sources.list for Debian releases, from the machine's own package sources.
#
# One rule: no host name is written in this project. The archive is the one that this machine's apt uses, or MIRROR: its
# URI, or whole lines, which are printed unchanged.
#
#     apt_sources.sh SUITE...                           apt_sources.sh bookworm bookworm-updates bookworm-security
#     KINDS="deb deb-src" apt_sources.sh SUITE...
set -eu

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
case ${MIRROR:-} in
deb*)
    printf '%s\n' "$MIRROR"
    exit
    ;;
esac

# Prints the URI of the first source with this label, which an archive's signed index contains.
get_uri() {
    apt-get indextargets --format '$(LABEL)|$(COMPONENT)|$(REPO_URI)' 'Created-By: Packages' |
        sed -n "s,^$1|main|\(.*[^/]\)/*\$,\1,p" | head -n 1
}

for suite; do
    case $suite in
    *-security) uri=$(get_uri Debian-Security) what="Debian's security updates" ;;
    *) uri=${MIRROR:-$(get_uri Debian)} what="Debian's packages" ;;
    esac
    if [ -z "$uri" ]; then
        echo "apt has no source of $what: add it to /etc/apt/sources.list.d and run apt-get update, or set MIRROR" >&2
        exit 1
    fi
    for kind in ${KINDS:-deb}; do echo "$kind [signed-by=$keyring] $uri $suite main"; done
done
