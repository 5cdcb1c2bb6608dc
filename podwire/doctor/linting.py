"""Reports what `podwire lint` finds in net.d, except what another check of doctor reports itself."""

from __future__ import annotations

from collections.abc import Iterator

from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.node import CheckedNode
from podwire.lint import directory
from podwire.lint.source import LintSeverity
from podwire.networks import with_delegates

_GROUP = "configuration"

_LINT = Fault(
    "lint",
    Severity.WARNING,
    "`podwire lint` finds a fault in a file of net.d: a misspelt key, an option without effect, a value that a plugin "
    "refuses",
)


def _check(node: CheckedNode) -> Iterator[Finding]:
    broken = {file.path for file in with_delegates(node.files) if file.problem}  # `file-unusable` reports these
    usable = {file.path for file in node.files} - broken
    names = {network.path for network in node.networks}
    for page in directory.lint_directory(node.conf_dir, node.plugins, ()).files:
        if page.path not in usable or page.path not in names or (page.network and page.network.is_loopback):
            continue
        for one in page.findings:
            if one.severity in (LintSeverity.ERROR, LintSeverity.WARNING):
                where = f"{page.path}:{one.line}:{one.column}"
                yield _LINT.finding(where, one.text, one.hint, behind=(f"lint {page.path}",))


CHECKS = (Check(_GROUP, "lint", "podwire lint finds no fault", _check, (_LINT,)),)
