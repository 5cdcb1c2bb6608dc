"""`inspect` for dataclasses, which asks for signatures, for docstrings that no code reads, and for annotations."""


def signature(of: object) -> str:
    """Returns no signature."""
    return ""


def get_annotations(of: type) -> dict[str, str]:
    """Returns a class's own annotations: from Python 3.13 on dataclasses asks for them here."""
    annotations: dict[str, str] = vars(of).get("__annotations__", {})
    return annotations
