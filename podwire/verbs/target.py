"""Resolves names on the command line: a namespace, a container, an attachment of the cache.

Names mean the same as for cnitool, so that both find each other's attachments; a namespace that a runtime
attached is recognized by its inode, whatever its path.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from attachment.sandbox import Sandbox
from cni.args import is_interface_name
from cni.conf import VALID_NAME
from cni.errors import CniError, Code
from cni.skel import Plugin
from kernel.netns import NAMED, Netns, list_named
from podwire import attachments
from podwire.attachments import CachedAttachment
from podwire.command import UsageError
from podwire.layers import Layer
from podwire.lint import positions
from podwire.lint.known import nearest
from podwire.lock import exclusive_namespace
from podwire.networks import Network


def namespace_path(text: str) -> str:
    """Returns the absolute path of a namespace given by path, by name in /run/netns ("web") or by PID ("4711")."""
    if "/" in text:
        return os.path.abspath(text)
    named = f"{NAMED}/{text}"
    if text.isascii() and text.isdigit() and not os.path.exists(named):
        return f"/proc/{text}/ns/net"
    return named


def require_namespace(path: str) -> None:
    """Raises CniError(8) if `path` is not a network namespace, or is the host's; the hint lists existing ones."""
    try:
        with Netns(path) as namespace:
            is_host = namespace.is_current()
    except CniError as error:
        names = ", ".join(list_named()) or "none"
        hint = f"give a path, a process's PID, or a name in {NAMED}: {names}"
        raise CniError(Code.INVALID_NETNS, f"{path} is not a network namespace", hint) from error
    if is_host:
        hint = "give the network namespace of a pod; a pod with hostNetwork has none, and is attached to no network"
        raise CniError(Code.INVALID_NETNS, f"{path} is this host's own network namespace, not a pod's", hint)


def namespace_lock(netns: str) -> AbstractContextManager[None]:
    """Locks a namespace against other podwire processes; raises CniError(11) if another one holds the lock.

    Of two parallel ADDs one fails, and its DEL would remove the other's interface. A missing namespace is not locked.
    """
    try:
        place = os.stat(netns)
    except OSError:
        return nullcontext()
    return exclusive_namespace(place, f"attaches or detaches {netns}")


def cnitool_container_id(netns: str) -> str:
    """Returns the container ID that cnitool makes of a namespace's path."""
    return f"cnitool-{hashlib.sha512(os.fsencode(netns)).digest()[:10].hex()}"


def require_free(netns: str, ifname: str) -> None:
    """Raises CniError(4) when the namespace has an interface of that name.

    A failed ADD is followed by DEL, which would delete the existing interface.
    """
    with Netns(netns) as namespace, Sandbox(namespace, ifname) as sandbox:
        if ifname != "lo" and sandbox.find_link():
            msg = f'{netns} has an interface "{ifname}" already'
            raise CniError(Code.INVALID_ENVIRONMENT, msg, "detach it first, or choose another name with --ifname")


def find_attachment(
    layers: Sequence[Layer], network: str, ifname: str, *, netns: str = "", name: str = ""
) -> CachedAttachment | None:
    """Returns the attachment of the cache with the container ID `name`, or cnitool's for `netns`, or in `netns`.

    None when there is none, or (of those in `netns`) more than one.
    """
    candidates = [one for one in attachments.list_cached(layers, network) if one.attachment.ifname == ifname]
    requested = name or (cnitool_container_id(netns) if netns else "")
    for one in candidates:
        if one.attachment.container_id == requested:
            return one
    in_namespace = [one for one in candidates if netns and not name and is_same(one.netns, netns)]
    return in_namespace[0] if len(in_namespace) == 1 else None


def is_same(one: str, other: str) -> bool:
    """Returns whether two paths lead to the same namespace."""
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except (OSError, ValueError):
        return False


def require_names(container: str, ifname: str) -> None:
    """Refuses an invalid container ID or interface name, as libcni does; raises CniError(4)."""
    if not VALID_NAME.fullmatch(container):
        raise UsageError(
            Code.INVALID_ENVIRONMENT, f"not a valid container ID: {container}", "letters, digits, . _ - are allowed"
        )
    if not is_interface_name(ifname):
        raise UsageError(
            Code.INVALID_ENVIRONMENT,
            f"not a valid interface name: {ifname}",
            "at most 15 characters, no slash, colon or space",
        )


def capability_args(text: str) -> dict[str, object]:
    """Reads --capability-args or CAP_ARGS; raises CniError(6)."""
    try:
        arguments = positions.loads(text.encode("utf-8", "replace")) if text else {}
    except ValueError as error:
        raise _bad_capabilities(str(error)) from None
    if not isinstance(arguments, dict):
        raise _bad_capabilities("it is not a JSON object")
    return arguments


def require_declared(network: Network, plugins: Mapping[str, Plugin], arguments: Iterable[str]) -> None:
    """Refuses capability arguments that no plugin of a network would get, since none declares them; raises CniError(4).

    libcni drops them silently: the pod would come up without its host port.
    """
    declared = network.capabilities
    for name in arguments:
        if name in declared:
            continue
        kinds = [str(plugin["type"]) for plugin in network.plugins]
        taker = next((kind for kind in kinds if kind in plugins and name in plugins[kind].capabilities), "")
        likely = nearest(name, declared)
        if likely:
            hint = f'did you mean "{likely}"?'
        elif taker:
            hint = f'add "capabilities": {{"{name}": true}} to the plugin {taker} in {network.path}'
        else:
            hint = f"capabilities that its plugins declare: {', '.join(declared) or 'none'}"
        msg = f'no plugin of network "{network.name}" declares the capability "{name}"'
        raise CniError(Code.INVALID_ENVIRONMENT, msg, hint)


def cni_args(pairs: list[str]) -> str:
    """Joins --args to CNI_ARGS; raises CniError(4) for an argument that is not K=V."""
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals and value) or "=" in value or ";" in pair:
            raise UsageError(
                Code.INVALID_ENVIRONMENT, f"not a pair of CNI_ARGS: {pair}", "write --args KEY=VALUE, once each"
            )
    return ";".join(pairs)


def _bad_capabilities(problem: str) -> UsageError:
    hint = """for example '{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}'"""
    return UsageError(Code.DECODING_FAILURE, f"the capability arguments cannot be used: {problem}", hint)
