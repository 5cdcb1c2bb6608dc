"""The cgroups of a pod: those of the processes in its network namespace, and the cgroups above them."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache

from kernel import ebpf
from podwire.facts.resolvers import processes_by_namespace

_MOUNTS = "/proc/self/mounts"
_UNITS = "system.slice"  # the services of systemd, which attaches programs there that only count packets


def list_programs(netns: str) -> dict[str, tuple[str, ...]]:
    """Returns the kinds of programs that can refuse a pod's packets or connections, by the directory of their cgroup.

    Programs of the root cgroup, which Cilium and Calico attach, and kinds that the node's services have as well are
    left out.
    """
    root, programs = _root(), {}
    with suppress(OSError):
        for pid in processes_by_namespace().get(os.stat(netns).st_ino, []):
            path = _cgroup_of(pid)
            while root and path.strip("/") and ".." not in path:
                if kinds := _programs(root + path):
                    programs[root + path] = kinds
                path = os.path.dirname(path)
    units = _programs(os.path.join(root, _UNITS)) if programs else ()
    others = {path: tuple(kind for kind in kinds if kind not in units) for path, kinds in programs.items()}
    return {path: kinds for path, kinds in others.items() if kinds}


@lru_cache(maxsize=1 << 12)
def _programs(directory: str) -> tuple[str, ...]:
    return tuple(ebpf.list_cgroup_programs(directory))


@lru_cache(maxsize=1)
def _root() -> str:
    """Returns where cgroups of version 2 are mounted, "" if they are not."""
    with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as table:
        return next((words[1] for line in table if (words := line.split())[2] == "cgroup2"), "")


def _cgroup_of(pid: str) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        return next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), "")
    return ""
