"""Extremes: networks whose size makes a verb slow, such as a full range, thousands of ranges or a thousand routes.

One rule: each call starts with the same files; released leases and deleted indexes are created again before the next.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from bench import cases
from bench.cases import Samples, Subjects, compare
from bench.figures import Row
from bench.process import Run
from bench.subject import LARGE_SUBNET, Config, Subject

_VERSION = "1.1.0"  # the first CNI version with GC and STATUS
_FULL = 65_533  # addresses of a /16 that can be allocated
_RANGES = 2_000
_CACHED = 300  # attachments in the runtime's cache
_CACHE = Path("/var/lib/cni/results")  # libcni's; bench.run mounts a separate /var/lib/cni
_ESCAPES = 170_000  # characters written as \u00e9: 1 MiB of JSON, the largest pipe buffer
_ROUTES = 1_000


def verbs(subjects: Subjects, rounds: int) -> list[Row]:
    """Measures STATUS and GC of a full /16, the first ADD without an index, ADD with many ranges and with escapes."""
    supporting = [subject for subject in subjects if cases.supports(subject, _VERSION)]

    def measure(subject: Subject) -> Samples:
        many, ranges = subject.reserved_network(cases.VERY_MANY), _with_ranges(subject)
        escapes = {**subject.reserved_network(cases.FEW), "comment": "\u00e9" * _ESCAPES}
        _index(subject, many).unlink(missing_ok=True)
        samples = {
            f"host-local ADD, the first with {cases.VERY_MANY:,} in use": subject.run("host-local", "ADD", many),
            f"host-local ADD, {_RANGES:,} ranges": subject.run("host-local", "ADD", ranges),
            "host-local ADD, 1 MiB of JSON escapes": subject.run("host-local", "ADD", escapes),
        }
        for config in (many, ranges, escapes):
            subject.run("host-local", "DEL", config)
        if subject in supporting:
            samples |= _full_range(subject)
        return samples

    return compare(subjects, rounds, measure)


def with_routes(network: cases.Network) -> cases.Network:
    """Returns the network with many routes for each pod."""

    def routed(subject: Subject) -> Config:
        config = network(subject)
        # The reference's CHECK does not find a route that inherits the default gateway.
        gateway = config["ipam"]["ranges"][0][0]["subnet"].replace(".0/16", ".1")
        routes = [{"dst": f"172.16.{number // 250}.{number % 250}/32", "gw": gateway} for number in range(_ROUTES)]
        return {**config, "ipam": {**config["ipam"], "routes": routes}}

    return routed


def _full_range(subject: Subject) -> Samples:
    full = subject.reserved_network(_FULL)
    ipam = {**full["ipam"], "ranges": [[{"subnet": f"{LARGE_SUBNET[0]}/16"}]]}
    config = {**full, "cniVersion": _VERSION, "ipam": ipam}
    no_attachments = {**config, "cni.dev/valid-attachments": []}
    samples = {
        f"host-local STATUS, {_FULL:,} in use": subject.run(
            "host-local", "STATUS", config, allowed_error="no IP addresses"
        ),
        f"host-local STATUS, {_FULL:,} in use, {_CACHED} cached": _status_with_cache(subject, config),
        f"host-local GC, {_FULL:,} in use": subject.run("host-local", "GC", no_attachments),
    }
    directory = subject.store / full["name"]
    assert not [file for file in directory.iterdir() if file.name[0].isdigit()], f"{subject.label}: GC left leases"
    shutil.rmtree(directory)
    _index(subject, full).unlink(missing_ok=True)
    return samples


def _status_with_cache(subject: Subject, config: Config) -> Run:
    """Runs STATUS while the runtime's cache lists attachments of the network, none of which has an address."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    names = [f"cached{number}" for number in range(_CACHED)]
    entry = {"kind": "cniCacheV1", "ifName": "eth0", "networkName": config["name"], "netns": "/proc/self/ns/net"}
    paths = [_CACHE / f"{config['name']}-{name}-eth0" for name in names]
    for path, name in zip(paths, names, strict=True):
        path.write_text(json.dumps({**entry, "containerId": name}))
    try:
        return subject.run("host-local", "STATUS", config, allowed_error="no IP addresses")
    finally:
        for path in paths:
            path.unlink()


def _with_ranges(subject: Subject) -> Config:
    """Returns a network with one range set of many ranges."""
    ranges = [{"subnet": f"{LARGE_SUBNET[256 * number]}/24"} for number in range(_RANGES)]
    config = subject.reserved_network(0)
    return {**config, "ipam": {**config["ipam"], "ranges": [ranges]}}


def _index(subject: Subject, config: Config) -> Path:
    """Returns the path of podwire's index; the reference plugin has no index."""
    directory: Path = subject.store.with_name(f"{subject.store.name}.podwire")
    return directory / str(config["name"])
