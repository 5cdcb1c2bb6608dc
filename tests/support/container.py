"""A container of a pod, run as a runtime runs it: with the manifest's files, mounts, user and capabilities only.

One rule: the manifest alone grants rights; a right that it does not grant is missing.

`python -m tests.support.container SPECIFICATION` is the container: it enters new namespaces, which end with it, and
executes the program.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tests.support import libc
from tests.support.processes import output

_CAPABILITIES = {"DAC_OVERRIDE": 1, "NET_ADMIN": 12, "NET_RAW": 13, "SYS_ADMIN": 21}  # linux/capability.h
_LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")


def command_line(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    image: Mapping[str, Path],
    volumes: Mapping[str, Path],
    *,
    env: Mapping[str, str] | None = None,
    entrypoint: str = "",
) -> tuple[str, ...]:
    """Returns the command that is a container; `volumes`: the pod's, by name; `image`: its files, by path.

    Without a command in the manifest, `entrypoint` or else the first file of `image` is the program. A volume that is
    missing in `volumes` is not mounted.
    """
    rights = {**pod["securityContext"], **container["securityContext"]}
    assert rights["capabilities"]["drop"] == ["ALL"]
    assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
    manifest_env = {item["name"]: item["value"] for item in container.get("env", ()) if "value" in item}
    all_env = {"PATH": "/usr/bin:/bin", **(env or {}), **manifest_env}
    mounts = [(path, str(source), True, False) for path, source in {**image, "/dev": "/dev"}.items()]
    mounts += [
        (one["mountPath"], str(volumes[one["name"]]), one.get("readOnly", False), "mountPropagation" in one)
        for one in container["volumeMounts"]
        if one["name"] in volumes
    ]
    specification = {
        "mounts": mounts,
        "user": rights["runAsUser"],
        "group": rights["runAsGroup"],
        "capabilities": rights["capabilities"].get("add", []),
        "argv": [
            *container.get("command", [entrypoint or next(iter(image))]),
            *(re.sub(r"\$\((\w+)\)", lambda name: all_env[name[1]], word) for word in container.get("args", ())),
        ],
        "env": all_env,
    }
    return sys.executable, "-m", "tests.support.container", json.dumps(specification)


def _become(specification: Mapping[str, Any]) -> None:
    """Turns this process into the container's."""
    libc.unshare(libc.NEW_MOUNTS | libc.NEW_PIDS)
    if child := os.fork():
        _wait(child)
    libc.receive_mounts_only()
    root = "/mnt"
    output("mount", "-t", "tmpfs", "-o", "mode=755", "podwire", root)
    image = {mount[0] for mount in specification["mounts"]}
    for name in (one for one in ("bin", "lib", "lib64", "sbin") if f"/{one}" not in image):
        os.symlink(f"usr/{name}", f"{root}/{name}")
    for path, source, read_only, receives_mounts in specification["mounts"]:
        target = Path(root + path)
        (target if os.path.isdir(source) else target.parent).mkdir(parents=True, exist_ok=True)
        if not os.path.isdir(source):
            target.touch()
        output("mount", "--rbind" if receives_mounts else "--bind", source, str(target))
        if not receives_mounts:
            output("mount", "--make-private", str(target))
        if read_only:
            output("mount", "-o", "remount,bind,ro", str(target))
    os.mkdir(f"{root}/proc")
    output("mount", "-t", "proc", "-o", "ro", "proc", f"{root}/proc")
    output("mount", "-o", "remount,ro", root)
    granted = {_CAPABILITIES[name] for name in specification["capabilities"]}
    os.chroot(root)
    os.chdir("/")
    dropped = [number for number in range(int(_LAST_CAPABILITY.read_text()) + 1) if number not in granted]
    os.setgroups([])
    os.setgid(specification["group"])
    libc.limit_rights(dropped)
    os.setuid(specification["user"])
    os.umask(0o022)
    libc.end_with_parent()
    os.execve(specification["argv"][0], specification["argv"], specification["env"])


def _wait(child: int) -> NoReturn:
    """Forwards SIGTERM to process 1 of the container, and ends with its exit status."""
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    _become(json.loads(sys.argv[1]))
