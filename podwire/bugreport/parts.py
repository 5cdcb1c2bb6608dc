"""The parts of a bug report, each a file of the archive with a function that collects it.

Every part only reads. It is collected on its own, with a limit of time, so that one that fails stops no other.
"""

from __future__ import annotations

import io
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from kernel import netns
from podwire import attachments, logs, networks
from podwire.bugreport import limits, programs
from podwire.bugreport.limits import PartError
from podwire.bugreport.redaction import Redaction
from podwire.command import Context
from podwire.node import records
from podwire.node.programs import find_program
from podwire.node.records import Directories
from podwire.output import Output, format_time
from process import files

LIMIT_S = 5.0
_MAX_BYTES = 32 << 20  # of one part
_FILE_BYTES = 4 << 20
_LOG_BYTES = 1 << 20
_SYSCTLS = (
    "net",
    "kernel/osrelease",
    "kernel/pid_max",
    "fs/file-nr",
    "user/max_net_namespaces",
    "vm/overcommit_memory",
)
_SYSTEM = ("/etc/os-release", "/proc/version", "/proc/uptime", "/proc/meminfo", "/proc/modules", "/proc/loadavg")
# What every kernel prints without a program, in the namespace of the process that reads it.
_PROC_NET = ("dev", "route", "ipv6_route", "if_inet6", "arp", "snmp", "netstat", "sockstat", "softnet_stat")


@dataclass(frozen=True)
class ReportPart:
    """A file of the report; `collect` returns its content, or raises PartError or CniError."""

    name: str
    collect: Callable[[], bytes]


@dataclass(frozen=True)
class Sources:
    """The sources of the parts: the command's input, and the options for the tool's commands."""

    context: Context
    directories: Directories
    bin_dirs: tuple[str, ...]
    redaction: Redaction
    log: str = ""

    def parts(self) -> Iterator[ReportPart]:
        """Yields all parts; those from which secrets are left out come first."""
        yield from self._files("net.d", self.directories.conf_dir, self.redaction.redact_conf)
        for layer in self.directories.layers:
            name = "multus-cache" if layer.source else "cache"
            yield from self._files(name, layer.results_dir, self.redaction.redact_cache_entry)
        yield ReportPart("node/sysctls.txt", self._sysctls)
        yield from self._commands()
        yield ReportPart("stores.txt", self._limited(self._stores))
        yield ReportPart("node/system.txt", self._limited(partial(_read_all, _SYSTEM)))
        yield ReportPart("node/proc-net.txt", self._limited(_read_proc_net))
        list_logs = partial(logs.list_files, self.context.env, self.directories)
        for path in [self.log] if self.log else self._strings(list_logs):
            yield ReportPart(f"log/{path.strip('/').replace('/', '_')}", self._limited(partial(_tail, path)))
        for name, words in programs.NODE.items():
            path = self.context.env.get("PATH", "")
            has_program = find_program(words[0], path) or words[0] not in programs.OPTIONAL
            if has_program and programs.is_applicable(name):
                yield ReportPart(name, partial(programs.run, [words], self.context.env, LIMIT_S))
        for network, container_id, ifname, pod, netns_path in self._attachments():
            name = f"{network}-{container_id[:12]}-{ifname}".replace("/", "_")
            title = f"{network} {container_id} {ifname} {pod} {netns_path}\n\n"
            yield ReportPart(f"pods/{name}.txt", partial(self._pod, title, netns_path))

    def _limited(self, function: Callable[[], bytes]) -> Callable[[], bytes]:
        return partial(limits.run, function, LIMIT_S, _MAX_BYTES)

    def _strings(self, function: Callable[[], list[str]]) -> list[str]:
        """Returns what a function returns, [] if it fails: then a part of the same content reports the reason."""
        try:
            data = limits.run(lambda: "\0".join(function()).encode("utf-8", "surrogateescape"), LIMIT_S, _MAX_BYTES)
        except PartError:
            return []
        return data.decode("utf-8", "surrogateescape").split("\0") if data else []

    def _attachments(self) -> Iterator[tuple[str, ...]]:
        """Yields network, container, interface, pod and namespace of each attachment in the cache."""
        cached = self._strings(
            lambda: [
                text
                for one in attachments.list_cached(self.directories.layers)
                for text in (one.network_name, *one.attachment, one.pod, one.netns)
            ]
        )
        yield from (tuple(cached[start : start + 5]) for start in range(0, len(cached), 5))

    def _files(self, name: str, directory: str, redact: Callable[[str, bytes], bytes]) -> Iterator[ReportPart]:
        """Yields a list of a directory's files, and the JSON files without their secrets."""
        yield ReportPart(f"{name}/files.txt", self._limited(partial(_list, directory)))
        names = self._strings(lambda: sorted(os.listdir(directory)))
        suffixes = networks.SUFFIXES if name == "net.d" else ("",)
        for file in names:
            if file.endswith(suffixes) and os.path.isfile(os.path.join(directory, file)):
                read = self._limited(partial(files.read, os.path.join(directory, file), _FILE_BYTES))
                yield ReportPart(f"{name}/{file}", partial(_redacted, redact, f"{name}/{file}", read))

    def _sysctls(self) -> bytes:
        """Returns all settings of the network, one in each line."""
        lines = limits.run(_read_sysctls, LIMIT_S, _MAX_BYTES).splitlines()
        kept = (line for line in lines if not self.redaction.is_secret_sysctl(line.partition(b" = ")[0].decode()))
        return b"\n".join(kept) + b"\n"

    def _commands(self) -> Iterator[ReportPart]:
        """Yields the output of the tool's own commands, for readers and for programs."""
        conf = f"--conf-dir={self.directories.conf_dir}"
        cache = [f"--cache-dir={layer.cache_dir}" for layer in self.directories.layers]
        data, plugins = f"--data-dir={self.directories.data_dir}", f"--bin-dir={':'.join(self.bin_dirs)}"
        for name, words in {
            "doctor": ["doctor", "--all", conf, *cache, plugins],
            "show": ["show", conf, *cache, data],
            "lint": ["lint", conf, plugins],
            "ipam-list": ["ipam", "list", conf, *cache, data],
            "ipam-verify": ["ipam", "verify", conf, *cache, data],
            "version": ["version", conf, plugins],
        }.items():
            for suffix, more in (("txt", []), ("json", ["--json"])):
                yield ReportPart(f"{name}.{suffix}", self._limited(partial(self._run_command, [*words, *more])))

    def _run_command(self, words: list[str]) -> bytes:
        """Returns the output of a command of the tool with its exit status; in this process, which is a child."""
        options: Namespace = self.context.parser.parse_args(words)
        stream = io.StringIO()
        out = Output(stream, as_json="--json" in words)
        status = options.command.run(replace(self.context, out=out, arguments=tuple(words)), options)
        text = stream.getvalue()
        ending = "" if out.as_json else f"(exit status {int(status)})\n"
        return (text + ending).encode("utf-8", "backslashreplace")

    def _stores(self) -> bytes:
        """Returns the files of host-local's stores: address, time, owner; a remark is left out."""
        lines = []
        for pool in records.read_records(self.directories).pools:
            lines.append(f"{pool.data_dir}/{pool.network}: {', '.join(map(str, pool.range_sets)) or 'no ranges'}")
            for item in pool.reservations:
                owner = " ".join(item.attachment) if item.has_container else "(no container)"
                written = format_time(item.file.written_ns // 10**9)
                lines.append(f"  {item.file.name}  {written}  {owner}{'  before boot' * item.before_boot}")
            lines += [f"  {name}: not a reservation" for name in pool.foreign]
            lines += [f"  last reserved: {address}" for address in pool.last_reserved.values()]
        return "\n".join([*lines, ""]).encode("utf-8", "backslashreplace")

    def _pod(self, title: str, netns_path: str) -> bytes:
        """Returns interfaces, routes, rules, neighbours and qdiscs of a pod, printed by the host's programs."""
        if not netns_path:
            raise PartError("the cache has no namespace")
        with netns.Netns(netns_path) as namespace, netns.entered(namespace):
            raw = limits.run(_read_proc_net, LIMIT_S, _MAX_BYTES)
            try:
                printed = programs.run(programs.POD, self.context.env, LIMIT_S)
            except PartError as error:
                printed = f"(left out: {error})\n".encode()
        return title.encode("utf-8", "backslashreplace") + printed + b"\n" + raw


def _redacted(redact: Callable[[str, bytes], bytes], name: str, read: Callable[[], bytes]) -> bytes:
    return redact(name, read())


def _list(directory: str) -> bytes:
    """Returns the files of a directory, one in each line: mode, size, time, name."""
    lines = []
    for name in sorted(os.listdir(directory)):
        status = os.lstat(os.path.join(directory, name))
        changed = format_time(status.st_mtime)
        lines.append(f"{status.st_mode:06o}  {status.st_uid}  {status.st_size:8}  {changed}  {name}\n")
    return "".join(lines).encode("utf-8", "backslashreplace")


def _read_all(paths: Iterable[str]) -> bytes:
    texts = []
    for path in paths:
        try:
            content = files.read(path, _FILE_BYTES)
        except (OSError, ValueError) as error:
            content = f"({error})\n".encode()
        texts.append(f"$ cat {path}\n".encode() + content)
    return b"\n".join(texts)


def _read_proc_net() -> bytes:
    """Returns the kernel's tables of the network namespace of this process."""
    paths = [f"/proc/thread-self/net/{name}" for name in _PROC_NET]
    return _read_all((*paths, "/proc/sys/net/netfilter/nf_conntrack_count", "/proc/sys/net/netfilter/nf_conntrack_max"))


def _read_sysctls() -> bytes:
    lines = []
    for root in (f"/proc/sys/{name}" for name in _SYSCTLS):
        below = [os.path.join(parent, name) for parent, _, names in os.walk(root) for name in names]
        for path in sorted(below) or [root]:
            try:
                value = files.read(path, 1 << 16).strip().replace(b"\n", b"\\n")
            except (OSError, ValueError):
                continue  # many can only be written
            lines.append(f"{path.removeprefix('/proc/sys/')} = ".encode() + value + b"\n")
    return b"".join(lines)


def _tail(path: str) -> bytes:
    """Returns the end of a file, from the first whole line on."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _LOG_BYTES))
        data = file.read(_LOG_BYTES)
    return data if size <= _LOG_BYTES else data.partition(b"\n")[2]
