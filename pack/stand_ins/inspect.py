"""`inspect` for dataclasses, which needs annotations, and signatures for docstrings that no code reads."""


def signature(of: object) -> str:
    """Returns an empty signature."""
    return ""


def get_annotations(of: type) -> dict[str, str]:
    """Returns the annotations in a class; dataclasses calls this since Python 3.13."""
    annotations: dict[str, str] = vars(of).get("__annotations__", {})
    return annotations
