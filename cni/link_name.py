"""The key that refers to an existing interface by its name, or by an altname, which may be longer than a name.

systemd gives an interface whose name would be too long that name as an altname only.
"""

from __future__ import annotations

from cni.args import is_interface_name
from cni.fields import Fields

_MAX_BYTES = 127  # ALTIFNAMSIZ - 1 (linux/if.h)


def read(fields: Fields, key: str, default: str = "") -> str:
    """Returns the name or altname under `key`; raises CniError(7) for one that no interface can have."""
    name = fields.string(key, default)
    if name != default and not is_name_or_altname(name):
        details = f"1 to {_MAX_BYTES} bytes, no spaces, slashes, colons or percent signs"
        raise fields.error(key, f'is not a valid interface name: "{name}"', details)
    return name


def is_name_or_altname(value: str) -> bool:
    """Returns whether an interface can have `value` as its name or as an altname."""
    return is_interface_name(value, max_bytes=_MAX_BYTES)
