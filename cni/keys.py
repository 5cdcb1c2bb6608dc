"""What keys a plugin's configuration may have: for who checks a file before a pod is started, and for the documents.

One rule: the plugin's conf.py decides what a value means and refuses what it cannot use; here stands what there is, of
which type, and where. A test keeps the two, and the option tables, in step.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    `keys` those of the object, or of the objects in the list. `choices` are the only words a string may be.
    """

    name: str
    kinds: tuple[str, ...]
    of: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()
    choices: tuple[str, ...] = ()
