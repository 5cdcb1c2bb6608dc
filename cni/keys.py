"""The schema of configuration keys, for `podwire lint` and the docs.

The schema lists keys, their places and types; the code that reads a key decides on valid values. A test keeps
schema, code and option tables in step.

A plugin's keys are listed in its conf.py; keys that several plugins read, next to the code that reads them.
"""

from __future__ import annotations

from collections.abc import Iterable

from process.values import dataclass, replace

# Types of values. IP is an address, CIDR one with its prefix, both as text. ANY is not checked.
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
    """A key: its name as the documents spell it, the allowed types of its value (see above), its content.

    `of` are the types of a list's elements, or of an object's values if the user chooses its keys (`sysctl`). `keys`
    are the keys of the object, or of the objects in the list; for a list of such lists `of` is LIST. `choices` are the
    allowed values of a string besides "".
    """

    name: str
    kinds: tuple[str, ...]
    of: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()
    choices: tuple[str, ...] = ()


def keys_of_type(kind: str, *names: str) -> tuple[Key, ...]:
    """Returns keys of one type."""
    return tuple(Key(name, (kind,)) for name in names)


def section(name: str, *keys: Key) -> Key:
    """Returns the key of an object that has `keys`."""
    return Key(name, (OBJECT,), keys=keys)


def runtime_config(*keys: Key) -> Key:
    """Returns `runtimeConfig`: the runtime's data on the attachment; each key is a capability."""
    return section("runtimeConfig", *keys)


def args_cni(*keys: Key) -> Key:
    """Returns `args.cni`: requests of the network's user for one attachment (CONVENTIONS.md, "args")."""
    return section("args", section("cni", *keys))


def merged(*groups: Iterable[Key]) -> tuple[Key, ...]:
    """Returns all keys of the groups, each name once; objects with one name are merged."""
    keys_by_name: dict[str, Key] = {}
    for key in (key for group in groups for key in group):
        before = keys_by_name.get(key.name)
        keys_by_name[key.name] = replace(key, keys=merged(before.keys, key.keys)) if before else key
    return tuple(keys_by_name.values())


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
    (Key("dst", (CIDR,)), Key("gw", (IP,)), *keys_of_type(INTEGER, "mtu", "advmss", "priority", "table", "scope")),
)
IPS = Key("ips", (LIST,), (STRING,))  # requested addresses, with or without a prefix
MAC = Key("mac", (STRING,))
IPAM_TYPE = section("ipam", Key("type", (STRING,)))

# Keys of every plugin's configuration: those that libcni reads, and the well-known keys of the specification (section
# "Plugin configuration objects"), which a plugin without a use for them ignores. `name` and `cniVersion` are the
# network's in a file with the configuration of a single plugin.
COMMON = (
    *keys_of_type(STRING, "name", "cniVersion", "type"),
    Key("capabilities", (OBJECT,), (BOOLEAN,)),
    Key("ipMasq", (BOOLEAN,)),
    IPAM_TYPE,
    DNS,
    Key("args", (OBJECT,)),
    *keys_of_type(STRING, "logFile", "logLevel"),
)
# Keys that the runtime adds to a request; they do not belong into a file.
REQUEST = (
    runtime_config(),
    Key("prevResult", (OBJECT,)),
    Key("podwire/listed-at", (INTEGER,)),
    *(
        Key(name, (LIST,), (OBJECT,), keys_of_type(STRING, "containerID", "ifname"))
        for name in ("cni.dev/valid-attachments", "cni.dev/attachments")
    ),
)
# A network's keys besides its plugins. The flags may also be "true" and "false" in quotes (libcni).
NETWORK = (
    *keys_of_type(STRING, "cniVersion", "name"),
    Key("cniVersions", (LIST,), (STRING,)),
    *(Key(name, (BOOLEAN, STRING), choices=("true", "false")) for name in ("disableCheck", "disableGC")),
    Key("loadOnlyInlinedPlugins", (BOOLEAN,)),
    Key("plugins", (LIST,), (OBJECT,)),
)
