"""The owner of an ifb: the ifb's name, and the text in its alias.

One rule: one send creates the ifb and sets its alias, so the reference plugin created every ifb without an alias.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha512

from cni.conf import Attachment
from kernel.link import Link
from process.values import dataclass

PREFIX = "bwp"  # the reference plugin's

_DIGITS = 12
NAME = re.compile(f"{PREFIX}[0-9a-f]{{{_DIGITS}}}")
_MARK = "podwire"
_WORD_MAX = 100  # of 255 bytes for the whole alias (IFALIASZ, linux/if.h)


@dataclass(frozen=True)
class IfbOwner:
    """An attachment, which has one ifb at most."""

    network: str
    container_id: str
    ifname: str

    @property
    def names(self) -> tuple[str, str]:
        """The reference plugin's name of the ifb, and one for a second interface of the container on the same network.

        The container's first interface uses the reference plugin's name. None of the three parts can contain a slash.
        """
        return _name(self.network + self.container_id), _name(f"{self.network}/{self.container_id}/{self.ifname}")

    @property
    def alias(self) -> str:
        """The alias of the ifb: "podwire", network, container ID and interface, separated by spaces."""
        return " ".join((_MARK, _word(self.network), _word(self.container_id), self.ifname))


def select_ifbs(owner: IfbOwner, links: Iterable[Link | None]) -> list[Link]:
    """Returns the ifbs of `owner` among `links`, all of which have one of the owner's names.

    The reference plugin created an ifb without an alias. It is selected only if no ifb has the owner's alias: otherwise
    it belongs to another interface of the container.
    """
    ifbs = [link for link in links if link and link.kind == "ifb"]
    return [link for link in ifbs if link.alias == owner.alias] or [link for link in ifbs if not link.alias][:1]


def stale_ifbs(network: str, valid: Iterable[Attachment], links: Iterable[Link]) -> list[Link]:
    """Returns the ifbs whose alias names an attachment of `network` that is not in `valid`."""
    valid_words = [_words(IfbOwner(network, *item)) for item in valid]
    stale = []
    for link in links:
        mark, *words = link.alias.split(" ")
        is_of_network = mark == _MARK and len(words) == 3 and words[0] == _word(network)
        if is_of_network and link.name.startswith(PREFIX) and words not in valid_words:
            stale.append(link)
    return stale


def owner_from_alias(alias: str) -> IfbOwner | None:
    """Returns the owner that an alias names, None if it names none; long names are the alias's hashes."""
    mark, *words = alias.split(" ")
    return IfbOwner(*words) if mark == _MARK and len(words) == 3 else None


def _words(owner: IfbOwner) -> list[str]:
    return owner.alias.split(" ")[1:]


def _name(text: str) -> str:
    return PREFIX + sha512(text.encode()).hexdigest()[:_DIGITS]


def _word(text: str) -> str:
    """Returns the name unchanged, or "sha512:..." if it is too long for the alias; names cannot contain a colon."""
    return text if len(text) <= _WORD_MAX else f"sha512:{sha512(text.encode()).hexdigest()[: _WORD_MAX // 2]}"
