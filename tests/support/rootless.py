"""A host as who is not root has it: an unprivileged user who is root of a user namespace (rootless podman, nerdctl).

One rule: what runs inside has no privilege outside; it began as the user `nobody` before it made its namespaces.
"""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.support import binaries, libc, private_host
from tests.support.namespaces import Namespace
from tests.support.processes import output

USER = 65534  # outside: nobody
ONE, MANY = "0 65534 1\n", "0 65534 1\n1 100000 65535\n"  # user_namespaces(7): without, and with ranges of subuid(5)

_PLACE = Path("/mnt")  # of the executables and of a home directory, in case the tests' own are root's alone
FOREIGN = _PLACE / "foreign"  # a directory of the host's root

RootlessTest = Callable[[Namespace, Path], None]


def run_rootless(scene: RootlessTest, mapped: str = ONE, *, at_once: bool = False) -> None:
    """Runs a scene in a child that is root of its own user, network and mount namespaces and of nothing else.

    It is given the network namespace, which stands for the host, and a home directory. `mapped` are the users and
    groups that it has inside. `at_once` makes the network with the users, as `unshare -Urn` does: some of its files
    in /proc are then of the host's root. What the scene raises fails the test.
    """
    _load_modules()
    told, tell = os.pipe()
    asked, ask = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            os.close(ask)
            network = libc.NEW_NETWORK
            _become_root(tell, asked, network if at_once else 0)
            home = _PLACE / "home"
            os.environ.update(HOME=str(home), PODWIRE_BIN_DIR=str(_PLACE / "bin"))
            namespaces = libc.NEW_MOUNTS | (0 if at_once else network)
            scene(private_host.enter("/var/lib/cni", namespaces=namespaces), home)
            os._exit(0)
        except BaseException:
            os.write(tell, traceback.format_exc().encode())
        finally:
            os._exit(1)
    os.close(tell)
    os.close(asked)
    with open(told, "rb", buffering=0) as pipe:
        said = pipe.read(1)
        for kind in ("uid_map", "gid_map") if said == b"." else ():
            Path(f"/proc/{child}/{kind}").write_text(mapped)
        os.write(ask, b".")
        os.close(ask)
        problem = (said + pipe.readall()).decode().removeprefix(".")
    status = os.waitpid(child, 0)[1]
    assert status == 0, problem


def _load_modules() -> None:
    """Has the kernel load what iptables-legacy itself loads elsewhere: only the host's root may, so he does it once."""
    output("unshare", "--net", "sh", "-ec", "iptables -t nat -S; ip6tables -t nat -S")


def _become_root(tell: int, asked: int, besides: int) -> None:
    """Gives up root for good, and becomes that of a new user namespace, whose users the parent writes down.

    `besides` are further namespaces that are made with it.
    """
    libc.unshare(libc.NEW_MOUNTS)
    output("mount", "--make-rprivate", "/")
    output("mount", "-t", "tmpfs", "podwire", str(_PLACE))
    shutil.copytree(binaries.directory(), _PLACE / "bin")
    program = _PLACE / "bin" / "podwire"
    for name in binaries.names():  # hard links, as in a release
        (_PLACE / "bin" / name).unlink()
        (_PLACE / "bin" / name).hardlink_to(program)
    (_PLACE / "home").mkdir()
    os.chown(_PLACE / "home", USER, USER)
    FOREIGN.mkdir(0o755)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    libc.unshare(libc.NEW_USERS | besides)
    libc.make_dumpable()  # else /proc/<pid> is root's, who has no name inside
    os.write(tell, b".")
    os.read(asked, 1)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
