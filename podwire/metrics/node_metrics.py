"""The metrics of the node itself: addresses, attachments, leaks, and doctor's findings. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from podwire.doctor.finding import UNSEEN, Check, Finding, Severity
from podwire.metrics.exposition import GAUGE, MetricFamily, Sample
from podwire.node.model import AttachmentState, NodeInventory
from podwire.node.snapshot import Snapshot

Findings = Sequence[tuple[Check, Finding]]


def families(node: NodeInventory, snapshot: Snapshot, findings: Findings) -> Iterator[MetricFamily]:
    """Yields the metrics of a node; `snapshot` is for the owners of addresses."""
    yield from _addresses(snapshot)
    states = Counter((pod.network, pod.state) for pod in node.pods)
    networks = dict.fromkeys([*(item.name for item in node.networks if item.name), *(pod.network for pod in node.pods)])
    attachments = (
        Sample({"network": name, "state": str(state)}, states[name, state])
        for name in networks
        for state in AttachmentState
    )
    yield MetricFamily(
        "podwire_attachments", GAUGE, "Attachments by the state that `podwire show` prints.", tuple(attachments)
    )
    leaks = Counter((leak.network, leak.kind) for leak in node.leaks)
    yield MetricFamily(
        "podwire_leaked_objects",
        GAUGE,
        "Objects of attachments that are no longer running.",
        _samples(("network", "kind"), leaks.items()),
    )
    bad = (item for item in findings if item[1].severity is not Severity.OK)
    counts = Counter((finding.name, finding.severity.value, check.group) for check, finding in bad)
    yield MetricFamily(
        "podwire_findings",
        GAUGE,
        "Findings of `podwire doctor`, by their names.",
        _samples(("name", "severity", "group"), counts.items()),
    )
    is_complete = not node.unseen and all(finding.name != UNSEEN.name for _, finding in findings)
    yield MetricFamily(
        "podwire_inspection_complete", GAUGE, "Whether everything could be inspected.", (Sample({}, is_complete),)
    )


def _addresses(snapshot: Snapshot) -> Iterator[MetricFamily]:
    """Yields size, reserved and leaked addresses of each range set of host-local."""
    size, used, leaked = [], [], []
    for pool in snapshot.records.pools:
        gone = [item.address for item in pool.reservations if snapshot.is_gone(item)]
        for range_set in pool.range_sets:
            labels = {"network": pool.network, "range": str(range_set), "data_dir": pool.data_dir}
            same = (address for address in gone if address.version == range_set.version)
            size.append(Sample(labels, range_set.size))
            used.append(Sample(labels, pool.in_use(range_set)))
            leaked.append(Sample(labels, sum(range_set.holds(int(address)) for address in same)))
    yield MetricFamily("podwire_ipam_addresses", GAUGE, "Addresses in a range set of host-local.", tuple(size))
    yield MetricFamily(
        "podwire_ipam_addresses_used", GAUGE, "Addresses that are reserved, leaked ones included.", tuple(used)
    )
    yield MetricFamily(
        "podwire_ipam_addresses_leaked",
        GAUGE,
        "Addresses reserved for containers that are no longer running.",
        tuple(leaked),
    )


def _samples(names: tuple[str, ...], counts: Iterable[tuple[tuple[str, ...], int]]) -> tuple[Sample, ...]:
    return tuple(Sample(dict(zip(names, values, strict=True)), number) for values, number in sorted(counts))
