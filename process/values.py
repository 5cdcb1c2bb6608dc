"""Values: what the parts of a verb hand each other, dataclasses that are made by the dozen in a few milliseconds.

One rule: a value is never changed after it was made. The type checker refuses to, and so does Python where it tests
assertions; the executable, which is built without them, makes a value in a fifth of the time for that.

For the type checker, and for a reader, these three are the standard library's own.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass", "field", "replace"]

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass, replace
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False) -> type | Callable[[type], type]:
        """Makes a class one of values, which compare and hash by their fields; one that is not `frozen` has no hash."""
        return dataclasses.dataclass(cls, frozen=frozen and __debug__, unsafe_hash=frozen)

    def replace(value: Any, /, **changes: object) -> Any:
        """Returns a value like `value` but for `changes`."""
        return type(value)(**{**value.__dict__, **changes})
