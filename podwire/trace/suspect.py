"""The first suspect for a lost packet: the object, its state, its owner, and the command that shows it."""

from __future__ import annotations

from typing import NamedTuple

from podwire.trace.rules import MetRule


class Suspect(NamedTuple):
    """The first suspect for a lost packet: `name` is its kind, a word for programs ("rule", "route", "neighbour").

    `place` is where it is, `object` the object itself, `owner` the program that it belongs to, "" for objects without
    one; `look` is a command that shows the object.
    """

    name: str
    place: str
    text: str
    object: str = ""
    owner: str = ""
    look: str = ""

    def to_json(self) -> dict[str, str]:
        """Returns the suspect as a JSON object."""
        return {
            "name": self.name,
            "place": self.place,
            "text": self.text,
            "object": self.object,
            "owner": self.owner,
            "look": self.look,
        }


def of_rule(rule: MetRule) -> Suspect:
    """Returns the suspect for a rule that dropped the packet."""
    text = f"a rule drops the packet: {rule.describe()}"
    if rule.text.startswith(("policy", "-P")):
        text = f"the policy of a chain drops the packet: {rule.table} {rule.chain}"
    return Suspect("rule", rule.place, text, rule.describe(), rule.owner, rule.look)


def of_queue(rule: MetRule) -> Suspect:
    """Returns the suspect for a rule that passed the packet to a queue, after which no other rule met it.

    No program reads a queue there, since rules would not be traced then.
    """
    text = f"a rule passes the packet to a queue that no program reads: {rule.describe()}"
    return Suspect("rule", rule.place, text, rule.describe(), rule.owner, "cat /proc/net/netfilter/nfnetlink_queue")
