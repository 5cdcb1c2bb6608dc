"""JSON text read and printed like Go's encoding/json, since runtimes rely on its details.

One rule: nothing here knows a key; text in, plain objects out, and back.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from json.encoder import encode_basestring

# More is refused: the biggest of all requests, a GC that names 10,000 attachments, takes 1 MiB; as many as fit here are
# read into some 40 times the memory at worst (a list of objects of one key).
MAX_BYTES = 2 << 20

_DECODE_LIMIT = "nested too deeply: the limit is some 300 levels"
_MARK = "\ufeff"
_MARKUP = re.compile("[<>&\u2028\u2029]")
_DIGITS = 400  # Python refuses to convert more than 4300; no key of podwire needs more than 20


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Builds an object whose keys stand in the order of their *last* occurrence: the last one wins in Go.

    A repeated key's `null` changes nothing, as in Go.
    """
    items = dict(pairs)
    if len(items) != len(pairs):
        items = {}
        for key, value in pairs:
            if value is not None or key not in items:
                items.pop(key, None)
                items[key] = value
    return items


def _integer(text: str) -> int:
    """Cuts a number of absurd length: it stays out of every range, and its key may be one that is not read."""
    return int(text[:_DIGITS])


def _constant(name: str) -> object:
    raise ValueError(f"invalid character {name[0]!r} looking for beginning of value ({name} is not JSON)")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=_integer, parse_constant=_constant)


def _scrub(value: object) -> object:
    """Replaces lone surrogates (one half of an escaped pair) by U+FFFD, as Go does; they cannot be printed again."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_scrub(item) for item in value]
    if isinstance(value, dict):
        return {_scrub(key): _scrub(item) for key, item in value.items()}
    return value


def loads(data: bytes) -> object:
    """Returns the one JSON value in `data`.

    Go's habits (encoding/json): invalid UTF-8 is replaced, not rejected; a duplicate key's last value wins;
    NaN and Infinity are refused; bytes after the value are an error. Unlike Go, whose limit is 10000 levels,
    nesting is limited by Python's recursion (some 300 levels), and the whole text to MAX_BYTES.

    Raises ValueError with the reason.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is too long: the limit is {MAX_BYTES >> 20} MiB")
    text = data.decode("utf-8", "replace")
    if not text.strip(" \t\r\n"):
        raise ValueError("unexpected end of JSON input")
    try:
        value = json.loads(text) if text.startswith(_MARK) else _DECODER.decode(text)  # the former refuses it
        return _scrub(value) if "\\ud" in text or "\\uD" in text else value
    except RecursionError:
        raise ValueError(_DECODE_LIMIT) from None


def repeated_keys(data: bytes, key: str) -> tuple[str, ...]:
    """Returns the names that occur more than once in the object under `key` of the object in `data`.

    Parses `data` again; `data` must have passed `loads`, else this may raise any exception.
    """
    names: list[str] = []
    for name, value in json.loads(data.decode("utf-8", "replace"), object_pairs_hook=tuple, parse_int=_integer):
        if name.casefold() == key.casefold() and isinstance(value, tuple):
            names += [item for item, times in Counter(item for item, _ in value).items() if times > 1]
    return tuple(names)


def dumps(value: object, *, indent: int | None = None) -> str:
    """Returns `value` as JSON text with Go's escaping of <, > and &; `indent` blanks a level, or one compact line."""
    text = _printed(value, "\n", " " * indent, ": ") if indent else _printed(value, "", "", ":")
    # Outside strings these characters do not occur in JSON, so the whole text can be treated at once.
    return _MARKUP.sub(_escape, text)


def _printed(value: object, margin: str, step: str, colon: str) -> str:
    """Returns a value as text; `margin` begins a line at its level, `step` indents by one more level.

    The standard library has no C code for indented text, and yields each word of it through all levels.
    """
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__repr__(value)
    if value and isinstance(value, dict):
        inner = margin + step
        items = [f"{encode_basestring(key)}{colon}{_printed(item, inner, step, colon)}" for key, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(items)}{margin}}}"
    if value and isinstance(value, list | tuple):
        inner = margin + step
        return f"[{inner}{f',{inner}'.join([_printed(item, inner, step, colon) for item in value])}{margin}]"
    return json.dumps(value, allow_nan=False)


def _escape(char: re.Match[str]) -> str:
    return f"\\u{ord(char[0]):04x}"
