"""Prometheus' text format (version 0.0.4): families of samples with their help and type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cni.gojson import without_surrogates

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True)
class Sample:
    """A value with its labels; `suffix` is the part of a histogram that it belongs to ("_bucket")."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(frozen=True)
class MetricFamily:
    """A metric: its name, its type, its meaning, its samples."""

    name: str
    kind: str
    meaning: str
    samples: tuple[Sample, ...]


def render(families: Iterable[MetricFamily]) -> str:
    """Returns families as text, those without samples left out."""
    lines = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {without_surrogates(family.meaning).translate(_HELP_ESCAPES)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += [f"{family.name}{one.suffix}{_labels(one.labels)} {_number(one.value)}" for one in family.samples]
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{without_surrogates(value).translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
