#!/bin/sh
# Runs a command, and prints a line on stderr every ten seconds, so that a user sees that it runs.
#
# One rule: the command's output and exit status are those without this script. A signal to this script alone ends it
# after the command; Ctrl-C reaches both.
#
#     progress.sh NAME COMMAND...        PROGRESS_S=SECONDS: the time between two lines
set -eu

name=$1 period_s=${PROGRESS_S:-10}
shift
# sleep outlives the command for some seconds: with the output open, it would make the reader of a pipe wait.
print_seconds() {
    passed_s=0
    while sleep "$period_s" >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        passed_s=$((passed_s + period_s))
        echo "$name: after $passed_s s" >&2
    done
}
print_seconds &
trap 'kill $! 2>/dev/null || :' EXIT  # it has ended if stderr cannot be written: a reader such as `head` has ended
trap 'exit 143' TERM INT HUP
"$@"
