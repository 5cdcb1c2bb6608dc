"""Writes the file `namespaces`: it lists the namespaces with policies; ADD waits only for pods of these.

One rule: each new content has a higher generation, even after a restart of the agent. attachment/policy/gate.py
describes and reads the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from attachment.policy import gate, table
from kernel import boot
from process import directories


class NamespacesFile:
    """Writes the file; `generation` is the generation of the last content."""

    def __init__(self, *, is_strict: bool) -> None:
        self._boot, self._is_strict = boot.get_boot_id(), is_strict
        before = gate.read_namespaces(self._boot)
        self.generation = before.generation if before else 0
        self._written: frozenset[str] | None = None

    def write(self, namespaces: Iterable[str]) -> None:
        """Replaces the file if it is missing, or the namespaces differ from those written last; raises OSError."""
        names = frozenset(namespaces)
        if names == self._written and os.path.exists(table.NAMESPACES_FILE):
            return
        document = {
            "boot": self._boot,
            "generation": self.generation + 1,
            "strict": self._is_strict,
            "namespaces": sorted(names),
        }
        directories.create(table.DIRECTORY)
        draft = f"{table.NAMESPACES_FILE}.new"
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
        os.rename(draft, table.NAMESPACES_FILE)
        self.generation += 1
        self._written = names
