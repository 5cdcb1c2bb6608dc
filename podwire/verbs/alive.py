"""Who lives of a network, before GC takes the rest for garbage.

One rule: the cache is not the only witness. It is written when the last plugin of an ADD is done, and a second runtime
may have another: who has an address that is young or configured somewhere is kept, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cni.conf import Attachment
from cni.errors import CniError, Code
from podwire import attachments
from podwire.attachments import Known
from podwire.node import books
from podwire.node.books import Places
from podwire.node.join import Join
from podwire.node.look import joined
from podwire.node.model import State


@dataclass(frozen=True)
class Living:
    """The living of `network`: the kernel is looked at once, the files each time that it is asked."""

    join: Join
    places: Places
    network: str

    @classmethod
    def looked_at(cls, places: Places, network: str) -> Living:
        """Looks at the node."""
        return cls(joined(places, rules=False), places, network)

    def valid(self) -> list[Attachment]:
        """Returns whom GC must keep."""
        by_cache = [one.attachment for one in attachments.known(self.places.cache_dir, self.network) if one.lives]
        return sorted({*by_cache, *self.unlisted()})

    def unlisted(self) -> list[Attachment]:
        """Returns those of them that the cache does not know."""
        fresh = replace(self.join, books=books.read(self.places))
        own = (pod for pod in fresh.pods if pod.network == self.network and pod.state is State.NO_CACHE)
        return sorted(pod.attachment for pod in own if not pod.leaked and pod.attachment.ifname)


def require_witness(known: Iterable[Known], results: str, network: str) -> None:
    """Raises CniError(5) for a cache without any attachment of the network, which may be the wrong one."""
    if not any(True for _ in known):
        hint = "give the runtime's with --cache-dir; if no pod of it lives, --all removes whatever is left of it"
        raise CniError(Code.IO_FAILURE, f'the cache {results} knows no attachment of "{network}"', hint)


def still_gone(one: Known) -> bool:
    """Tells whether an attachment is still in the cache and gone: a runtime may have deleted it, or made it again."""
    found = attachments.read(one.path)
    return found is not None and found.attachment == one.attachment and not found.lives
