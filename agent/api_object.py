"""An object of the Kubernetes API, or a part of one, as a JSON document.

One rule: the server accepts nearly every form, so a part that is missing or of another type is read as an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping

Document = Mapping[str, object]


def object_at(document: Document, key: str) -> Document:
    """Returns the object at a key, an empty one for any other value."""
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def objects_at(document: Document, key: str) -> list[Document]:
    """Returns the objects in the list at a key, none for any other value."""
    value = document.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
