"""Formats a line of the log as text: what a verb did, how long it took, and why it failed.

A line may come from any release or from an editor; unexpected values are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

_INDENT = "  "


def format_line(line: Mapping[str, object]) -> list[str]:
    """Returns the lines to print, the first a summary; the caller escapes control characters."""
    lines = [_headline(line)]
    lines += [_INDENT + text for text in _identities(line)]
    error = _object(line.get("error"))
    if error:
        lines.append(f"{_INDENT}error {error.get('code', '?')}: {error.get('msg', '')}")
        lines += [f"{_INDENT}hint: {error['details']}"] if error.get("details") else []
    lines += _part("steps", [_step(item) for item in _list(line.get("steps"))])
    lines += _part("changes", [str(item) for item in _list(line.get("changes"))])
    return lines


def _headline(line: Mapping[str, object]) -> str:
    """Returns "ADD of bridge: 10.1.2.5/24, 3.2 ms", or that it failed."""
    ips = [str(item) for item in _list(_object(line.get("result")).get("ips"))]
    outcome = "failed" if _object(line.get("error")) else ", ".join(ips) or "done"
    took = _ms(line.get("ms"))
    return f"{line.get('command', '?')} of {line.get('plugin', '?')}: {outcome}" + (f", {took}" if took else "")


def _identities(line: Mapping[str, object]) -> list[str]:
    lines = []
    for words, keys in (
        ("network", ("network",)),
        ("container", ("containerID", "ifname")),
        ("pod", ("pod",)),
        ("namespace", ("netns",)),
        ("trace", ("traceID",)),
    ):
        values = [str(line[key]) for key in keys if line.get(key)]
        if values:
            lines.append(f"{words} {' '.join(values)}")
    return lines


def _part(name: str, items: list[str]) -> list[str]:
    return [f"{_INDENT}{name}:", *(2 * _INDENT + item for item in items)] if items else []


def _step(item: object) -> str:
    """Returns "   0.42 ms  host-local ADD", or the text that counts omitted steps."""
    step = _object(item)
    return f"{_ms(step.get('ms')):>11}  {step.get('what', '?')}" if step else str(item)


def _ms(value: object) -> str:
    return f"{value:.2f} ms" if isinstance(value, int | float) else ""


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
