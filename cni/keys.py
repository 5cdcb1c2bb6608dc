"""What keys a configuration may have: for who checks a file before a pod is started, and for the documents.

One rule: the code that reads a key decides what its value means and refuses what it cannot use; here stands what there
is, of which type, and where. A test keeps the two, and the option tables, in step.

A plugin's own keys stand in its conf.py, those that several plugins read beside what reads them.
"""

from __future__ import annotations

from collections.abc import Iterable

from process.values import dataclass, replace

# Types of values. IP is an address, CIDR one with its prefix, both as text. ANY is not judged (a foreign object).
STRING, BOOLEAN, INTEGER, IP, CIDR, OBJECT, LIST, ANY = (
    "string",
    "boolean",
    "integer",
    "IP address",
    "CIDR",
    "object",
    "list",
    "any",
)


@dataclass(frozen=True)
class Key:
    """One key: its name as the documents spell it, the types its value may have (of those above), what is in it.

    `of` are the types of a list's elements, or of an object's values where its keys are names of the user's (`sysctl`);
    `keys` those of the object, or of the objects in the list, be it a list of such lists (`of` is LIST then). `choices`
    are the only words a string may be, beside none at all.
    """

    name: str
    kinds: tuple[str, ...]
    of: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()
    choices: tuple[str, ...] = ()


def each(kind: str, *names: str) -> tuple[Key, ...]:
    """Returns keys of one type."""
    return tuple(Key(name, (kind,)) for name in names)


def section(name: str, *keys: Key) -> Key:
    """Returns the key of an object that has `keys`."""
    return Key(name, (OBJECT,), keys=keys)


def runtime_config(*keys: Key) -> Key:
    """Returns `runtimeConfig`: what the runtime tells of the attachment, each key a capability."""
    return section("runtimeConfig", *keys)


def args_cni(*keys: Key) -> Key:
    """Returns `args.cni`: what the user of the network asks for one attachment (CONVENTIONS.md, "args")."""
    return section("args", section("cni", *keys))


def merged(*groups: Iterable[Key]) -> tuple[Key, ...]:
    """Returns all keys of the groups, each name once: objects of one name have the keys of both."""
    found: dict[str, Key] = {}
    for key in (key for group in groups for key in group):
        before = found.get(key.name)
        found[key.name] = replace(key, keys=merged(before.keys, key.keys)) if before else key
    return tuple(found.values())


DNS = section(
    "dns",
    Key("nameservers", (LIST,), (STRING,)),
    Key("domain", (STRING,)),
    Key("search", (LIST,), (STRING,)),
    Key("options", (LIST,), (STRING,)),
)
ROUTES = Key(
    "routes",
    (LIST,),
    (OBJECT,),
    (Key("dst", (CIDR,)), Key("gw", (IP,)), *each(INTEGER, "mtu", "advmss", "priority", "table", "scope")),
)
IPS = Key("ips", (LIST,), (STRING,))  # addresses that are asked for, with a prefix or without
MAC = Key("mac", (STRING,))
IPAM_TYPE = section("ipam", Key("type", (STRING,)))

# What every plugin's configuration may have: what libcni reads, and the well-known keys of the specification (section
# "Plugin configuration objects"), which a plugin without a use for them ignores. `name` and `cniVersion` are the
# network's own in the configuration of one plugin that is alone in its file.
COMMON = (
    *each(STRING, "name", "cniVersion", "type"),
    Key("capabilities", (OBJECT,), (BOOLEAN,)),
    Key("ipMasq", (BOOLEAN,)),
    IPAM_TYPE,
    DNS,
    Key("args", (OBJECT,)),
    *each(STRING, "logFile", "logLevel"),
)
# What the runtime adds to a request, and nobody writes into a file.
REQUEST = (
    runtime_config(),
    Key("prevResult", (OBJECT,)),
    *(
        Key(name, (LIST,), (OBJECT,), each(STRING, "containerID", "ifname"))
        for name in ("cni.dev/valid-attachments", "cni.dev/attachments")
    ),
)
# What a network has beside its plugins. The flags may also be "true" and "false" in quotes (libcni).
NETWORK = (
    *each(STRING, "cniVersion", "name"),
    Key("cniVersions", (LIST,), (STRING,)),
    *(Key(name, (BOOLEAN, STRING), choices=("true", "false")) for name in ("disableCheck", "disableGC")),
    Key("loadOnlyInlinedPlugins", (BOOLEAN,)),
    Key("plugins", (LIST,), (OBJECT,)),
)
