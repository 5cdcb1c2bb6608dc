"""The circumstances of a view: the node, the time, the version of podwire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shot:
    """The name of the node, the time in UTC, and podwire's version."""

    node: str
    time: str
    version: str

    def to_json(self) -> dict[str, object]:
        """Returns this object's part of the JSON document."""
        return {"podwire": self.version, "node": self.node, "time": self.time.replace(" ", "T")}
