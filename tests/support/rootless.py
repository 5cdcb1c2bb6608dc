"""Runs tests rootless: as an unprivileged user that is root of a user namespace (rootless podman, nerdctl).

One rule: the child has no privilege on the host; it becomes an unprivileged user before it creates its namespaces.
"""

import os
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.support import binaries, libc, private_host
from tests.support.namespaces import Namespace
from tests.support.processes import output

USER = 65534  # an unprivileged user of the host
ONE_ID, MANY_IDS = "0 65534 1\n", "0 65534 1\n1 100000 65535\n"  # user_namespaces(7): without and with subuid(5)

_PLACE = Path("/mnt")  # for the executables and a home directory; the tests' directories may be readable by root only
FOREIGN = _PLACE / "foreign"  # a directory that the host's root owns

RootlessTest = Callable[[Namespace, Path], None]


def run_rootless(test: RootlessTest, mapped: str = ONE_ID, *, at_once: bool = False) -> None:
    """Runs a test in a child process that is root of new user, network and mount namespaces, and of nothing else.

    The test gets the network namespace, which represents the host, and a home directory. `mapped` are the user and
    group IDs in the user namespace. With `at_once` the network namespace is created together with the user namespace,
    as by `unshare -Urn`; then the host's root owns some of its files in /proc. An exception in the test fails the test.
    """
    # iptables-legacy needs modules, which only the host's root may load.
    output("unshare", "--net", "sh", "-ec", "iptables -t nat -S; ip6tables -t nat -S")
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(from_child)
            os.close(to_child)
            network = libc.NEW_NETWORK
            _become_root(to_parent, from_parent, network if at_once else 0)
            home = _PLACE / "home"
            os.environ.update(HOME=str(home), PODWIRE_BIN_DIR=str(_PLACE / "bin"))
            namespaces = libc.NEW_MOUNTS | (0 if at_once else network)
            test(private_host.enter("/var/lib/cni", namespaces=namespaces), home)
            os._exit(0)
        except BaseException:
            os.write(to_parent, traceback.format_exc().encode())
        finally:
            os._exit(1)
    os.close(to_parent)
    os.close(from_parent)
    with open(from_child, "rb", buffering=0) as pipe:
        reply = pipe.read(1)
        for kind in ("uid_map", "gid_map") if reply == b"." else ():
            Path(f"/proc/{child}/{kind}").write_text(mapped)
        os.write(to_child, b".")
        os.close(to_child)
        problem = (reply + pipe.readall()).decode().removeprefix(".")
    status = os.waitpid(child, 0)[1]
    assert status == 0, problem


def _become_root(to_parent: int, from_parent: int, besides: int) -> None:
    """Drops root permanently, and becomes root of a new user namespace, for which the parent writes the ID maps.

    `besides` are further namespaces that are created together with it.
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
    libc.make_dumpable()  # otherwise the host's root, which the namespace does not map, owns /proc/<pid>
    os.write(to_parent, b".")
    os.read(from_parent, 1)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
