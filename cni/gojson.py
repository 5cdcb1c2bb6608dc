"""JSON read and printed with the rules of Go's encoding/json, on which runtimes and the reference plugins rely.

Python's json has other rules: for repeated keys, `null`, NaN, invalid UTF-8, lone surrogates, and `<`, `>` and `&` in
output. This module adds Go's rules to json's decoder and encoder and is the only JSON code of the plugins;
podwire.lint.positions also needs offsets, and pack/json.c is the C part of json in the static executable.

No key has a meaning here; text becomes plain objects, and objects text.
"""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring

# The largest request, a GC with 10,000 attachments, has 1 MiB. In the worst case, a list of objects with one key, the
# parsed value needs 40 times the memory of the text.
MAX_BYTES = 2 << 20

_DECODE_LIMIT = "nested too deeply: the limit is some 300 levels"
_MARK = "\ufeff"
_MARKUP = re.compile("[<>&\u2028\u2029]")
_DIGITS = 400  # Python refuses to convert more than 4300; no key of podwire needs more than 20


def without_surrogates(text: str) -> str:
    """Replaces lone surrogates by "?": bytes that are not UTF-8 become such, and JSON cannot contain them."""
    return text.encode("utf-8", "replace").decode()


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Builds an object with its keys in the order of their *last* occurrence, whose value wins in Go.

    As in Go, a `null` for a repeated key changes nothing.
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
    """Returns a number, truncated if it is very long: it stays out of every range, and its key may be ignored."""
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

    As in Go, invalid UTF-8 is replaced, the last value of a repeated key wins, and NaN, Infinity and bytes after the
    value are errors. Unlike in Go, whose limit is 10,000 levels, Python's recursion limits nesting to some 300 levels;
    the text may have MAX_BYTES.

    Raises ValueError with the reason.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is too long: the limit is {MAX_BYTES >> 20} MiB")
    text = data.decode("utf-8", "replace")
    if not text.strip(" \t\r\n"):
        raise ValueError("unexpected end of JSON input")
    try:
        value = json.loads(text) if text.startswith(_MARK) else _DECODER.decode(text)  # json.loads refuses the mark
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
            times: dict[str, int] = {}
            for item, _ in value:
                times[item] = times.get(item, 0) + 1
            names += [item for item, number in times.items() if number > 1]
    return tuple(names)


def dumps(value: object, *, indent: int | None = None) -> str:
    """Returns `value` as JSON text with Go's escapes for <, > and &, with `indent` spaces per level or on one line."""
    text = _printed(value, "\n", " " * indent, ": ") if indent else _printed(value, "", "", ":")
    # These characters occur only in strings, so one substitution over the whole text is enough.
    return _MARKUP.sub(_escape, text)


def _printed(value: object, margin: str, step: str, colon: str) -> str:
    """Returns a value as text; `margin` begins a line at its level, `step` indents by one more level.

    The standard library has no C code for indented text, and its generators pass each piece through all levels.
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
