"""Fields: the typed reader of JSON objects that every configuration goes through.

Keys match without regard to case and types are strict, as with Go's encoding/json, because containerd
sends "HostPort" where the documents say "hostPort"; errors name the path of the key.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni.address import Address, Cidr, parse_cidr, parse_ip
from cni.errors import CniError, invalid_conf

_INT64 = 1 << 63
_QUOTES = {"a string": " in double quotes", "an integer": " without quotes", "true or false": " without quotes"}


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "a list"
    return "an object"


class Fields:
    """A JSON object of a configuration, read by key, with the path of the object for error texts.

    Every reader returns its default for an absent key and for `null` (Go leaves the field alone), and raises
    CniError(7) for a value of another type: nothing is coerced. Lists are read elementwise with the index in the path.
    """

    __slots__ = ("_items", "_path", "context")

    def __init__(self, items: Mapping[str, object], path: str = "", context: str = "failed to load netconf") -> None:
        # The last in the text wins whatever its case, and null changes nothing: not even an earlier value.
        if None in items.values():
            items = {key: value for key, value in items.items() if value is not None}
        self._items = dict(zip(map(str.casefold, items), items.values(), strict=True))
        self._path = path
        self.context = context

    def with_context(self, context: str) -> Fields:
        """Returns the same object with error texts that begin with `context`."""
        return Fields(self._items, self._path, context)

    def path(self, key: str) -> str:
        """Returns the full path of `key`, as error texts show it."""
        return f"{self._path}.{key}" if self._path else key

    def error(self, key: str, problem: str, details: str = "") -> CniError:
        """Returns (does not raise) a CniError(7): `key` and its `problem`."""
        return invalid_conf(f'{self.context}: "{self.path(key)}" {problem}', details)

    def _wrong_type(self, key: str, expected: str, value: object) -> CniError:
        return self.error(
            key, f"must be {expected}, not {_kind(value)}", f"write {expected}{_QUOTES.get(expected, '')}"
        )

    def raw(self, key: str) -> object:
        """Returns the value of `key` as parsed, None when absent or null."""
        return self._items.get(key.casefold())

    def has(self, key: str) -> bool:
        """Returns whether `key` has a value other than null."""
        return key.casefold() in self._items

    def string(self, key: str, default: str = "") -> str:
        """Returns a string."""
        value = self._items.get(key.casefold(), default)
        if not isinstance(value, str):
            raise self._wrong_type(key, "a string", value)
        return value

    def boolean(self, key: str, default: bool = False) -> bool:
        """Returns true or false; the strings "true" and "false" are refused as the reference refuses them."""
        value = self._items.get(key.casefold(), default)
        if not isinstance(value, bool):
            raise self._wrong_type(key, "true or false", value)
        return value

    def integer(self, key: str, *, minimum: int = -_INT64, maximum: int = _INT64 - 1) -> int | None:
        """Returns an integer between `minimum` and `maximum`, or None; fractions and exponents are refused."""
        value = self._items.get(key.casefold())
        if value is None:
            return None
        if isinstance(value, float):
            raise self.error(key, f"must be an integer, not {value}", "write it without fraction or exponent")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong_type(key, "an integer", value)
        if not minimum <= value <= maximum:
            raise self.error(key, f"must be between {minimum} and {maximum}, not {value}", "correct it, or remove it")
        return value

    def ip(self, key: str) -> Address | None:
        """Returns an address, None for an absent key and for "" (Go's net.IP unmarshals "" as unset)."""
        text = self.string(key)
        if not text:
            return None
        try:
            return parse_ip(text)
        except ValueError:
            raise self.error(key, f"is not an IP address: {text}") from None

    def cidr(self, key: str) -> Cidr | None:
        """Returns address and prefix ("10.1.2.5/24"), host bits kept, or None."""
        if not self.has(key):
            return None
        text = self.string(key)
        try:
            return parse_cidr(text)
        except ValueError:
            raise self.error(key, f"is not an address with prefix: {text}", 'write it like "10.1.2.0/24"') from None

    def nested(self, key: str) -> Fields | None:
        """Returns the object under `key`, or None."""
        value = self._items.get(key.casefold())
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong_type(key, "an object", value)
        return Fields(value, self.path(key), self.context)

    def section(self, key: str) -> Fields:
        """Returns the object under `key`, an empty one when absent."""
        return self.nested(key) or Fields({}, self.path(key), self.context)

    def string_map(self, key: str) -> dict[str, str]:
        """Returns an object of strings in its order; the keys keep their case."""
        value = self.raw(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong_type(key, "an object", value)
        items = {}
        for name, item in value.items():
            if not isinstance(item, str):
                raise self._wrong_type(f"{key}.{name}", "a string", item)
            items[name] = item
        return items

    def _elements(self, key: str) -> list[object]:
        value = self._items.get(key.casefold())
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong_type(key, "a list", value)
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        """Returns a list of strings; a null element is "" as in Go."""
        items = []
        for index, item in enumerate(self._elements(key)):
            if item is not None and not isinstance(item, str):
                raise self._wrong_type(f"{key}[{index}]", "a string", item)
            items.append(item or "")
        return tuple(items)

    def objects(self, key: str) -> tuple[Fields, ...]:
        """Returns a list of objects; a null element is an empty object as in Go."""
        items = []
        for index, item in enumerate(self._elements(key)):
            at = f"{key}[{index}]"
            if item is not None and not isinstance(item, dict):
                raise self._wrong_type(at, "an object", item)
            items.append(Fields(item or {}, self.path(at), self.context))
        return tuple(items)

    def object_lists(self, key: str) -> tuple[tuple[Fields, ...], ...]:
        """Returns a list of lists of objects (host-local's `ranges`)."""
        lists = []
        for index, item in enumerate(self._elements(key)):
            at = f"{key}[{index}]"
            lists.append(Fields({at: item}, self._path, self.context).objects(at))
        return tuple(lists)
