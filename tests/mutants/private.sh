#!/bin/bash
# Runs a command on the test root (tests/runner/isolated.sh) with a private copy of the project: what it writes there is
# in a directory of its own (root).
#
# One rule: the project has the same path and content as outside, except for the files in WORK/project/upper.
#
#     private.sh WORK ROOT COMMAND...       WORK: a directory; project/upper in it has the changed files
set -eu

if [ "$1" != --inside ]; then
    exec unshare --mount --propagation private "$0" --inside "$@"
fi

work=$2 root=$3
shift 3

# overlay NAME DIRECTORY: what is written to the directory goes to WORK/NAME/upper.
overlay() {
    mkdir -p "$work/$1/upper" "$work/$1/work"
    mount -t overlay overlay -o "lowerdir=$2,upperdir=$work/$1/upper,workdir=$work/$1/work" "$2"
}

overlay project "$PWD"
cd "$PWD"
[[ $root == "$PWD"/* ]] || overlay root "$root"
mkdir -p "$work/scratch"
exec tests/runner/isolated.sh "$root" "$work/scratch" "$@"
