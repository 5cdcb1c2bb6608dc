"""Whose an ifb is: names and the text on it.

One rule: the text is set in the same send that makes the ifb, so that one without it is the reference's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha512

from cni.conf import Attachment
from kernel.link import Link
from process.values import dataclass

PREFIX = "bwp"  # the reference's

_DIGITS = 12
NAME = re.compile(f"{PREFIX}[0-9a-f]{{{_DIGITS}}}")
_MARK = "podwire"
_WORD_MAX = 100  # of 255 bytes for the whole text (IFALIASZ, linux/if.h)


@dataclass(frozen=True)
class Owner:
    """An attachment, which has one ifb at most."""

    network: str
    container_id: str
    ifname: str

    @property
    def names(self) -> tuple[str, str]:
        """The ifb's name as the reference has it, and the one for a further interface of a container on a network.

        The first is taken by the interface that comes first. A slash is in none of the words.
        """
        return _name(self.network + self.container_id), _name(f"{self.network}/{self.container_id}/{self.ifname}")

    @property
    def alias(self) -> str:
        """The text on the ifb: "podwire", network, container ID and interface."""
        return " ".join((_MARK, _word(self.network), _word(self.container_id), self.ifname))


def select_ifbs(owner: Owner, found: Iterable[Link | None]) -> list[Link]:
    """Returns which of the ifbs that have the owner's names are the owner's.

    One without any text is the reference's and may be that of the container's other interface; so it is, if the
    owner has one of its own.
    """
    ifbs = [link for link in found if link and link.kind == "ifb"]
    return [link for link in ifbs if link.alias == owner.alias] or [link for link in ifbs if not link.alias][:1]


def stale_ifbs(network: str, valid: Iterable[Attachment], links: Iterable[Link]) -> list[Link]:
    """Returns the ifbs of a network's attachments that are not `valid`; one without a text is proven nobody's."""
    keep = [_words(Owner(network, *item)) for item in valid]
    found = []
    for link in links:
        mark, *words = link.alias.split(" ")
        of_network = mark == _MARK and len(words) == 3 and words[0] == _word(network)
        if of_network and link.name.startswith(PREFIX) and words not in keep:
            found.append(link)
    return found


def owner_from_alias(alias: str) -> Owner | None:
    """Returns whose an ifb is by the text on it, None where it does not say; a long name is as in the text."""
    mark, *words = alias.split(" ")
    return Owner(*words) if mark == _MARK and len(words) == 3 else None


def _words(owner: Owner) -> list[str]:
    return owner.alias.split(" ")[1:]


def _name(text: str) -> str:
    return PREFIX + sha512(text.encode()).hexdigest()[:_DIGITS]


def _word(text: str) -> str:
    """Returns a name as it is, or what stands for one that is too long: with a colon, which is in no name."""
    return text if len(text) <= _WORD_MAX else f"sha512:{sha512(text.encode()).hexdigest()[: _WORD_MAX // 2]}"
