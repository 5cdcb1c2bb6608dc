"""Extremes: host-local where a verb's work grows with the network, as with a full range or thousands of them.

One rule: each call begins with the same files; what one has released or indexed is made anew before the next.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from bench import cases
from bench.cases import Samples, Subjects, compare
from bench.figures import Row
from bench.process import Run
from bench.subject import CROWD, Config, Subject

_VERSION = "1.1.0"  # the first with GC and STATUS
_FULL = 65_533  # addresses that a /16 can give
_RANGES = 2_000
_CACHED = 300  # attachments that the runtime's cache has
_CACHE = Path("/var/lib/cni/results")  # of libcni; the bench's own (bench.run)
_ESCAPES = 170_000  # characters that JSON writes as \u00e9: 1 MiB of them, which is what a pipe holds at most
_ROUTES = 1_000


def verbs(subjects: Subjects, rounds: int) -> list[Row]:
    """Measures STATUS and GC of a full /16, the first ADD without an index, ADD with many ranges and with escapes."""
    collecting = [subject for subject in subjects if cases.knows(subject, _VERSION)]

    def act(subject: Subject) -> Samples:
        many, ranges = subject.crowd(cases.CROWDED), _with_ranges(subject)
        escapes = {**subject.crowd(cases.FEW), "comment": "\u00e9" * _ESCAPES}
        _index(subject, many).unlink(missing_ok=True)
        done = {
            f"host-local ADD, the first with {cases.CROWDED:,} taken": subject.run("host-local", "ADD", many),
            f"host-local ADD, {_RANGES:,} ranges": subject.run("host-local", "ADD", ranges),
            "host-local ADD, 1 MiB of JSON escapes": subject.run("host-local", "ADD", escapes),
        }
        for config in (many, ranges, escapes):
            subject.run("host-local", "DEL", config)
        if subject in collecting:
            done |= _of_a_full_range(subject)
        return done

    return compare(subjects, rounds, act)


def with_routes(network: cases.Network) -> cases.Network:
    """Returns the networks with many routes for each pod."""

    def routed(subject: Subject) -> Config:
        config = network(subject)
        # The reference's CHECK finds no route without a gateway of its own.
        gateway = config["ipam"]["ranges"][0][0]["subnet"].replace(".0/16", ".1")
        routes = [{"dst": f"172.16.{number // 250}.{number % 250}/32", "gw": gateway} for number in range(_ROUTES)]
        return {**config, "ipam": {**config["ipam"], "routes": routes}}

    return routed


def _of_a_full_range(subject: Subject) -> Samples:
    full = subject.crowd(_FULL)
    ipam = {**full["ipam"], "ranges": [[{"subnet": f"{CROWD[0]}/16"}]]}
    config = {**full, "cniVersion": _VERSION, "ipam": ipam}
    nobody = {**config, "cni.dev/valid-attachments": []}
    done = {
        f"host-local STATUS, {_FULL:,} taken": subject.run("host-local", "STATUS", config, may_say="no IP addresses"),
        f"host-local STATUS, {_FULL:,} taken, {_CACHED} cached": _status_beside_a_cache(subject, config),
        f"host-local GC, {_FULL:,} taken": subject.run("host-local", "GC", nobody),
    }
    directory = subject.store / full["name"]
    assert not [file for file in directory.iterdir() if file.name[0].isdigit()], f"{subject.label}: GC left leases"
    shutil.rmtree(directory)
    _index(subject, full).unlink(missing_ok=True)
    return done


def _status_beside_a_cache(subject: Subject, config: Config) -> Run:
    """Runs STATUS where the runtime's cache names attachments of the network, none of which has an address."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    names = [f"cached{number}" for number in range(_CACHED)]
    entry = {"kind": "cniCacheV1", "ifName": "eth0", "networkName": config["name"], "netns": "/proc/self/ns/net"}
    paths = [_CACHE / f"{config['name']}-{name}-eth0" for name in names]
    for path, name in zip(paths, names, strict=True):
        path.write_text(json.dumps({**entry, "containerId": name}))
    try:
        return subject.run("host-local", "STATUS", config, may_say="no IP addresses")
    finally:
        for path in paths:
            path.unlink()


def _with_ranges(subject: Subject) -> Config:
    """Returns a network with one set of many ranges."""
    ranges = [{"subnet": f"{CROWD[256 * number]}/24"} for number in range(_RANGES)]
    config = subject.crowd(0)
    return {**config, "ipam": {**config["ipam"], "ranges": [ranges]}}


def _index(subject: Subject, config: Config) -> Path:
    """Returns the path of podwire's index; the reference has none."""
    directory: Path = subject.store.with_name(f"{subject.store.name}.podwire")
    return directory / str(config["name"])
