"""`typing`, which has to make tuples with named fields; everything else is for readers and type checkers."""

# mypy: disable-error-code="misc,arg-type,attr-defined"
# It knows tuples with named fields as its own.
from __future__ import annotations

import collections


class _Form:
    """Stands for a type, with parameters or without."""

    def __getitem__(self, parameters: object) -> _Form:
        return self


class Generic:
    """A base class with parameters."""

    def __class_getitem__(cls, parameters: object) -> type[Generic]:
        return cls


class Protocol(Generic):
    """The attributes that a type must have; not checked at run time."""


class TypedDict(dict[str, object]):
    """A dictionary, whatever is said of its keys."""


class TypeVar:
    """A type to be known later."""

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
    """A tuple with named fields, by the annotations in the class."""


def cast(kind: object, value: object) -> object:
    """Returns the value."""
    return value


TYPE_CHECKING = False
Any = BinaryIO = Callable = Dict = Literal = NoReturn = Optional = Self = TextIO = Tuple = Union = _Form()
ClassVar, _GenericAlias = object(), TypeVar  # dataclasses looks whether a field is of one
