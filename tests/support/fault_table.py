"""The faults that `podwire doctor` must find (tests/data/faults.toml).

One rule: a fault is one change that an operator, another program or the kernel makes on real nodes.
"""

import tomllib
from dataclasses import dataclass

from tests.support.binaries import ROOT

REBUILD = "rebuild"


@dataclass(frozen=True)
class Fault:
    """A fault; the file explains the keys."""

    group: str
    title: str
    shell: str
    finding: str
    others: tuple[str, ...] = ()
    undo: str = ""
    repair: bool = True
    run: bool = True
    needs: tuple[str, ...] = ()
    before: str = ""
    intended: bool = False

    @property
    def name(self) -> str:
        """The name of its test."""
        return f"{self.group}: {self.title}"


def load() -> tuple[Fault, ...]:
    """Reads the faults."""
    content = tomllib.loads((ROOT / "tests" / "data" / "faults.toml").read_text())
    undo: dict[str, str] = content["undo"]
    lists = [{key: tuple(one.get(key, ())) for key in ("needs", "others")} for one in content["fault"]]
    faults = zip(content["fault"], lists, strict=True)
    return tuple(Fault(**{"undo": undo.get(one["group"], ""), **one, **more}) for one, more in faults)


FAULTS = load()
