"""`typing` with NamedTuple; all other names only exist, for readers and type checkers."""

# mypy: disable-error-code="misc,arg-type,attr-defined"
# mypy has its own implementation of NamedTuple.
from __future__ import annotations

import collections


class _Form:
    """A type, with or without parameters."""

    def __getitem__(self, parameters: object) -> _Form:
        return self


class Generic:
    """A base class with parameters."""

    def __class_getitem__(cls, parameters: object) -> type[Generic]:
        return cls


class Protocol(Generic):
    """A protocol; not checked at run time."""


class TypedDict(dict[str, object]):
    """A dictionary; its keys are not checked."""


class TypeVar:
    """A type variable."""

    def __init__(self, name: str, *bounds: object, **options: object) -> None:
        pass


class _Fields(type):
    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, object]) -> type:
        if not bases:
            return super().__new__(cls, name, bases, namespace)
        fields = namespace.pop("__annotations__", {})
        defaults = [namespace.pop(field) for field in fields if field in namespace]
        created = collections.namedtuple(name, fields, defaults=defaults, module=namespace.pop("__module__"))
        for key, value in namespace.items():
            setattr(created, key, value)
        return created


class NamedTuple(metaclass=_Fields):
    """A tuple with named fields, which are the annotations of the class."""


def cast(kind: object, value: object) -> object:
    """Returns the value."""
    return value


TYPE_CHECKING = False
Any = BinaryIO = Callable = Dict = Literal = NoReturn = Optional = Self = TextIO = Tuple = Union = _Form()
ClassVar, _GenericAlias = object(), TypeVar  # dataclasses compares the type of a field with these
