"""Label selectors of the Kubernetes API: parses a selector, and decides which labels it matches. Pure.

One rule: selectors with the same requirements are equal values, in whatever order their documents list them, so that
their policies share one nftables set.

Source: the Kubernetes API, meta/v1 LabelSelector.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import NamedTuple

IN, NOT_IN, EXISTS, DOES_NOT_EXIST = "In", "NotIn", "Exists", "DoesNotExist"
_WITH_VALUES = (IN, NOT_IN)
_OPERATORS = (*_WITH_VALUES, EXISTS, DOES_NOT_EXIST)


class Requirement(NamedTuple):
    """A condition of a selector; `values` are sorted, and empty for Exists and DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class Selector(NamedTuple):
    """Selects the objects that meet all requirements; without any it selects all objects."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Returns whether labels meet all requirements; NotIn and DoesNotExist are met if the key is missing."""
        for key, operator, values in self.requirements:
            value = labels.get(key)
            if operator == IN:
                is_met = value in values
            elif operator == NOT_IN:
                is_met = value not in values
            else:
                is_met = (value is not None) == (operator == EXISTS)
            if not is_met:
                return False
        return True

    def anchors(self) -> tuple[tuple[str, str | None], ...]:
        """Returns pairs of key and value for an index: each object that the selector selects has at least one of them.

        The value None means any value of the key; the key "" means every object.
        """
        in_requirements = [each for each in self.requirements if each.operator == IN]
        if in_requirements:
            shortest = min(in_requirements, key=lambda each: len(each.values))
            return tuple((shortest.key, value) for value in shortest.values)
        return next((((each.key, None),) for each in self.requirements if each.operator == EXISTS), (("", None),))


def parse_selector(document: object, at: str) -> Selector:
    """Returns the selector in a document; raises ValueError, whose text begins with `at`, the path of the field."""
    if not isinstance(document, Mapping):
        raise ValueError(f"{at} is not an object")
    labels, expressions = document.get("matchLabels") or {}, document.get("matchExpressions") or []
    if not isinstance(labels, Mapping) or not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise ValueError(f"{at}.matchLabels is not an object with string values")
    if not isinstance(expressions, list):
        raise ValueError(f"{at}.matchExpressions is not a list")
    from_labels = {Requirement(intern(key), IN, (intern(value),)) for key, value in labels.items()}
    from_expressions = {_parse_expression(item, f"{at}.matchExpressions[{n}]") for n, item in enumerate(expressions)}
    return Selector(tuple(sorted(from_labels | from_expressions)))


def _parse_expression(document: object, at: str) -> Requirement:
    if not isinstance(document, Mapping):
        raise ValueError(f"{at} is not an object")
    key, operator, values = document.get("key"), document.get("operator"), document.get("values") or []
    if not isinstance(key, str) or not key:
        raise ValueError(f"{at}.key is not a label key")
    if operator not in _OPERATORS:
        raise ValueError(f"{at}.operator {operator!r} is none of {', '.join(_OPERATORS)}")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{at}.values is not a list of strings")
    if bool(values) != (operator in _WITH_VALUES):
        raise ValueError(f"{at}.values must {'not ' if values else ''}be set: the operator is {operator}")
    return Requirement(intern(key), operator, tuple(sorted({intern(value) for value in values})))
