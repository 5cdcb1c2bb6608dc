"""A node for networkPolicy: a private directory of policies, and an agent that answers as a test says.

One rule: nothing is written outside the mount namespace of the test's process.
"""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from _podwire import setns

from attachment.policy import table
from kernel.boot import get_boot_id
from tests.support import libc
from tests.support.namespaces import Namespace
from tests.support.processes import output

DIRECTORY = Path(table.DIRECTORY)
PODS = Path(table.PODS_DIRECTORY)
Answer = dict[str, Any] | bytes | None  # None: closes the connection


@contextmanager
def private_directory() -> Iterator[None]:
    """Mounts an empty tmpfs on the directory above, which only this process and its children see."""
    mount_namespace, working_directory = os.open("/proc/self/ns/mnt", os.O_RDONLY), Path.cwd()
    libc.unshare(libc.NEW_MOUNTS)
    try:
        libc.receive_mounts_only()
        parent = DIRECTORY.parent
        parent.mkdir(exist_ok=True)
        output("mount", "-t", "tmpfs", "podwire", str(parent))
        yield
    finally:  # the mounts of process 1 again: later tests prove by them that a pod was deleted
        libc.unshare(libc.SEPARATE_ROOT)  # an agent's threads may still run: they share this process's root directory
        setns(mount_namespace, libc.NEW_MOUNTS)
        os.close(mount_namespace)
        os.chdir(working_directory)


def write_namespaces(*names: str, generation: int = 1, strict: bool = False, boot: str | None = None) -> None:
    """Writes the agent's file."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    current = get_boot_id()
    document = {"boot": current if boot is None else boot, "generation": generation, "strict": strict}
    draft = DIRECTORY / ".namespaces"
    draft.write_text(json.dumps({**document, "namespaces": sorted(names)}))
    draft.rename(table.NAMESPACES_FILE)


def records() -> list[dict[str, Any]]:
    """Returns the records of all pods."""
    return [json.loads(path.read_text()) for path in sorted(PODS.glob("*"))] if PODS.is_dir() else []


def files() -> list[str]:
    """Returns the names of all files that ADD may leave, drafts included."""
    return sorted(path.name for path in PODS.iterdir()) if PODS.is_dir() else []


def ruleset(host: Namespace) -> str:
    """Returns the guards' tables as `nft` prints them, "" without any."""
    lines = host.run("nft", "-s", "list", "ruleset")
    return lines if "podwire_guard" in lines else ""


@contextmanager
def agent(answer: Callable[[dict[str, Any]], Answer]) -> Iterator[list[dict[str, Any]]]:
    """Listens as podwire-agent does while the context is active; yields the list of requests.

    `answer` returns the answer to a request, and may wait.
    """
    requests: list[dict[str, Any]] = []
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    draft = DIRECTORY / ".gate"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(draft))
        server.listen(64)
        draft.rename(table.GATE_SOCKET)
        thread = threading.Thread(target=_serve, args=(server, answer, requests), daemon=True)
        thread.start()
        try:
            yield requests
        finally:
            Path(table.GATE_SOCKET).unlink(missing_ok=True)
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def _serve(server: socket.socket, answer: Callable[[dict[str, Any]], Answer], requests: list[dict[str, Any]]) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            line = connection.makefile("rb").readline()
            if not line:
                continue
            requests.append(json.loads(line))
            reply = answer(requests[-1])
            if reply is not None:
                with suppress(BrokenPipeError):  # ADD has ended
                    connection.sendall(reply if isinstance(reply, bytes) else json.dumps(reply).encode() + b"\n")
