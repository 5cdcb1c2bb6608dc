"""Kernel modules that podwire needs: whether one is missing, and why.

The kernel loads most modules when they are first used: only a request that it refused shows that one is missing.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

from cni.errors import internal
from kernel import system
from kernel.codec import LinkMessage
from kernel.errors import KernelError
from kernel.link import RTM_NEWLINK
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Request, Socket
from kernel.wire import Attributes
from process import files

# The kernel's option (CONFIG_...) that builds each module.
OPTIONS = {
    "8021q": "VLAN_8021Q",
    "act_mirred": "NET_ACT_MIRRED",
    "br_netfilter": "BRIDGE_NETFILTER",
    "bridge": "BRIDGE",
    "cls_u32": "NET_CLS_U32",
    "dummy": "DUMMY",
    "ifb": "IFB",
    "ipvlan": "IPVLAN",
    "macvlan": "MACVLAN",
    "sch_htb": "NET_SCH_HTB",
    "sch_ingress": "NET_SCH_INGRESS",
    "sch_tbf": "NET_SCH_TBF",
    "tun": "TUN",
    "veth": "VETH",
    "vrf": "NET_VRF",
    "vxlan": "VXLAN",
}

_LOADED, _DISABLED = "/proc/modules", "/proc/sys/kernel/modules_disabled"
_DIRECTORY = "/lib/modules"
_SETTINGS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
_MAX_BYTES = 1 << 24


def refuse_missing_links(socket: Socket, kind: str) -> None:
    """Raises CniError(999) with the fix if the kernel has no links of `kind`; raises KernelError (EPERM)."""
    if problem := get_links_problem(socket, kind):
        raise internal(f"the kernel has no {kind} interfaces", problem)


def get_links_problem(socket: Socket, kind: str) -> str:
    """Returns why the kernel has no links of `kind`, and the fix, "" if it has them; raises KernelError (EPERM).

    Probes with a request that always fails, since name and address are invalid; the kernel loads the module.
    """
    info: Attributes = [("IFLA_INFO_KIND", kind)]
    # Without the address, veth would create its other end before the name is refused.
    attributes: Attributes = [("IFLA_IFNAME", "/"), ("IFLA_ADDRESS", b"\0"), ("IFLA_LINKINFO", {"attrs": info})]
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    try:
        socket.send(Request(f'create {kind} "/"', LinkMessage, RTM_NEWLINK, flags, {}, attributes))
    except KernelError as error:
        if error.errno == errno.EPERM:
            raise
        if error.errno == errno.EOPNOTSUPP:
            return explain_missing("8021q" if kind == "vlan" else kind)
    return ""


def has_device(name: str) -> bool:
    """Returns whether a loaded module or the kernel itself implements the character device `name` ("tun")."""
    return any(line.split()[1:] == [name] for line in _read("/proc/misc").splitlines())


def explain_missing(*names: str) -> str:
    """Returns the fix for the kernel's refusal of what the modules `names` implement."""
    command = "modules: modprobe -a" if len(names) > 1 else "module: modprobe"
    return get_obstacle(*names) or f"load the {command} {' '.join(names)}"


def get_obstacle(*names: str) -> str:
    """Returns why modprobe cannot, or must not, load one of the modules, and the fix; "" if no reason is known."""
    release, listed_names = os.uname().release, " and ".join(names)
    if not os.path.exists(system.current.path(_LOADED)) and os.path.exists(system.current.path("/proc/version")):
        options = " and ".join(f"CONFIG_{OPTIONS[name]}" for name in names)
        return f"use a kernel with {options}: this one, {release}, has no loadable modules"
    if installed := _list(_DIRECTORY):
        if release not in installed:
            return f"reboot: {_DIRECTORY} has the modules of another kernel than the running one, {release}"
        index = "".join(_read(f"{_DIRECTORY}/{release}/modules.{kind}") for kind in ("dep", "builtin"))
        if absent := [name for name in names if index and not re.search(rf"/{name}\.ko", index)]:
            packages = f"linux-modules-extra-{release} (Ubuntu) or kernel-modules-extra (Fedora, RHEL)"
            return f"{_DIRECTORY}/{release} has no {' and no '.join(absent)}: install a package such as {packages}"
    if line := next(_list_prohibitions(names), ""):
        return f"{listed_names} must be loaded, and {line} forbids that: decide which applies"
    if _read(_DISABLED).strip() == "1":
        return f"list {listed_names} in a file of /etc/modules-load.d and reboot: kernel.modules_disabled is 1"
    return ""


def _list_prohibitions(names: tuple[str, ...]) -> Iterator[str]:
    """Yields the lines of modprobe's settings that stop the kernel from loading a module, each with its file."""
    for directory in _SETTINGS:
        for file in _list(directory):
            text = _read(f"{directory}/{file}")
            for match in re.finditer(r"^\s*(?:blacklist|install)\s+(\S+).*$", text, re.MULTILINE):
                if match[1].replace("-", "_") in names:
                    yield f'"{match[0].strip()}" in {directory}/{file}'


def _list(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(system.current.path(directory)))
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        return files.read(system.current.path(path), _MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
