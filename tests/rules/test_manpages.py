"""The manual pages of plugins: the Markdown of docs/ as requests of man(7)."""

import re

import pytest

from pack.release import manpages
from podwire.main import PLUGINS

HEAD = ['.TH PODWIRE-X 8 "" "podwire 1.0" "CNI plugins"', ".ad l", ".nh", ".SH NAME", r"podwire\-x \- does it"]
REQUESTS = {"TH", "ad", "nh", "SH", "SS", "PP", "IP", "TP", "RS", "RE", "nf", "fi", "br"}


def body(markdown):
    """Returns the lines between the description's heading and SEE ALSO."""
    lines = manpages.page("podwire-x", f"# x\n{markdown}", "does it", "1.0").splitlines()
    assert lines[:5] == HEAD
    assert lines[-2:] == [".SH SEE ALSO", r"\fBpodwire\fR(1)"]
    return lines[6:-2]


@pytest.mark.parametrize(
    ("markdown", "lines"),
    [
        ("two\nlines of `code`", [".PP", r"two lines of \fBcode\fR"]),
        ("a **strong `-x`**, *soft*", [".PP", r"a \fBstrong \fB\-x\fR\fR, \fIsoft\fR"]),
        ("[page](page.md#part), [site](https://example.org)", [".PP", "page, site <https://example.org>"]),
        ("![figure](figure.svg)", []),
        (".so is no request", [".PP", r"\&.so is no request"]),
        ('## What it is\n### A "part"', ['.SH "WHAT IT IS"', r'.SS "A \(dqpart\(dq"']),
        ('```json\n{\n  "a-b": 1\n}\n```', [".PP", ".RS 4", ".nf", "{", r'  "a\-b": 1', "}", ".fi", ".RE"]),
        ("- one\n  more\n- two", [r'.IP "\(bu" 3', "one more", r'.IP "\(bu" 3', "two"]),
        ("1. one\n\n   below", [r'.IP "1." 4', "one", ".RS 4", ".PP", "below", ".RE"]),
        ("| a | b |\n|---|---|\n| `k` | v |", [".TP", r"\fBk\fR", "v"]),
        ("| a | b | c |\n|---|---|---|\n| k | v | `x\\|y` |", [".TP", "k", ".br", "b: v", ".br", r"c: \fBx|y\fR"]),
        ("text\n`code` begins a line", [".PP", r"text \fBcode\fR begins a line"]),
    ],
)
def test_conversion(markdown, lines):
    """Each form of Markdown that docs/ uses has its requests."""
    assert body(markdown) == lines


@pytest.mark.parametrize("name", PLUGINS)
def test_page_of_a_plugin(name):
    """A plugin's page has its summary, every heading of docs/, the common part, and only the expected requests."""
    page = manpages.plugin_page(name, "1.0")
    assert set(re.findall(r"^[.'](\w*)", page, re.MULTILINE)) <= REQUESTS
    assert r" \- " in page.splitlines()[4]
    for heading in ("OPTIONS", "RESULT", "LIMITS", "DIFFERENCES FROM THE REFERENCE PLUGIN", "COMMON TO ALL PLUGINS"):
        assert f'.SH "{heading}"' in page
