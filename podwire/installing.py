"""Installs one file under all its names in a directory of plugins, and keeps the files that were there before.

At every moment each name is a complete file, old or new, even if this process is killed: names change only
by rename. Before that, the replaced file is kept, and the manifest lists the new one.

    <directory>/.podwire-replaced/manifest.json   {"ours": [sha256, ...], "conf": {path: sha256}}
    <directory>/.podwire-replaced/<name>          the file before the first installation; later ones <name>~2, ...
    <directory>/.podwire-new*                     temporary files, also of a killed process
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field

from cni import gojson
from cni.errors import CniError, Code
from podwire.integrity import is_damaged
from podwire.lint import positions
from podwire.lock import exclusive_lock
from process import child, durable, files

_KEPT, _MANIFEST, _NEW = ".podwire-replaced", "manifest.json", ".podwire-new"
_PACKAGE = "/var/lib/dpkg/info/podwire.list"  # the files of the Debian package
PACKAGE_FIX = "apt-get remove podwire"
_DRAFTS = (".new", ".podwire-new")  # suffixes of unfinished copies of a kept file, and of the manifest
_CHUNK_BYTES = 1 << 20
_NO_LINKS = (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
_HINTS = {
    errno.EACCES: "this needs root",
    errno.EPERM: "this needs root; a file may also be immutable (lsattr)",
    errno.EROFS: "it is mounted read-only: choose another directory that the runtime searches, or remount it",
    errno.ENOSPC: "free 30 MB there; nothing was changed",
    errno.EDQUOT: "free 30 MB there; nothing was changed",
    errno.ENOTDIR: "a component of the path is a file",
    errno.EEXIST: "it is a file; name a directory",
}


@dataclass
class Manifest:
    """The hashes of the installed executables (`ours`) and of the network files that were written, by path (`conf`)."""

    ours: list[str] = field(default_factory=list)
    conf: dict[str, str] = field(default_factory=dict)


@dataclass
class Directory:
    """A directory of plugins. With `dry_run` nothing is changed; `actions` describes the changes.

    `removed` are the paths that `uninstall` removes without restoring another file.
    """

    path: str
    names: Sequence[str]
    dry_run: bool = False
    actions: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    _hashes: dict[tuple[int, int, int], str] = field(default_factory=dict)

    def install(self, program: str) -> None:
        """Installs `program` under all names; raises CniError(5), CniError(11)."""
        new_hash = self._hash(program)
        with _filesystem_errors(f"install into {self.path}"):
            self._require_regular_files()
            if self.dry_run:
                self._plan(new_hash)
                return
            os.makedirs(self.path, mode=0o755, exist_ok=True)
            with self.locked():
                self._sweep()
                todo = [name for name in self.names if self._present(name) != new_hash]
                if not todo:
                    self.actions.append(f"nothing to do: {self.path} already has this podwire under all its names")
                    return
                fresh = os.path.join(self.path, _NEW)
                try:
                    _copy(program, fresh)
                    _try(fresh, self.names)
                    self._keep(todo, new_hash)
                    for name in todo:
                        self._put(fresh, name)
                finally:
                    self._sweep()
                    durable.synchronize(self.path)

    def uninstall(self, program: str) -> None:
        """Restores the replaced files and removes podwire's others; other files stay. Raises CniError(5)."""
        with _filesystem_errors(f"uninstall from {self.path}"):
            if not os.path.isdir(self.path):
                self.actions.append(f"nothing to do: {self.path} does not exist")
                return
            self._require_regular_files()
            if is_packaged(self.path, self.names):  # only dpkg may remove its files
                text = f"the files in {self.path} belong to the Debian package podwire"
                raise CniError(Code.IO_FAILURE, text, f"run: {PACKAGE_FIX}, which restores the previous files")
            if self.dry_run:
                self._remove_installed(program)
            else:
                with self.locked():
                    self._sweep()
                    self._remove_installed(program)
                    self._forget()
                    durable.synchronize(self.path)
            if not self.actions:
                self.actions.append(f"nothing to do: {self.path} has no podwire")

    def remove_links(self, links: Sequence[str]) -> None:
        """Removes symbolic links to the tool if the tool itself is removed."""
        tool = os.path.join(self.path, "podwire")
        for link in links if self.dry_run or not os.path.lexists(tool) else ():
            self.actions.append(f"removed the link {link}")
            if not self.dry_run:
                with _filesystem_errors(f"remove {link}"):
                    os.unlink(link)

    def has_installed(self, program: str) -> bool:
        """Returns whether `install` has put a file there that is still in place; False if one cannot be read."""
        try:
            ours = {*self.manifest().ours, self._hash(program)}
            return any(self._present(name) in ours for name in self.names)
        except (OSError, CniError):
            return False

    def is_current(self, program: str) -> bool:
        """Returns whether each plugin is, or links to, a file equal to `program`; False if one cannot be read."""
        try:
            new_hash = self._hash(program)
            plugins = (os.path.join(self.path, name) for name in self.names if name != "podwire")
            return all(self._hash(os.path.realpath(plugin)) == new_hash for plugin in plugins)
        except OSError:
            return False

    def manifest(self) -> Manifest:
        """Reads the manifest; returns an empty one if there is none, raises CniError(6) for an invalid one."""
        path = os.path.join(self.path, _KEPT, _MANIFEST)
        try:
            return _manifest(positions.loads(files.read(path, gojson.MAX_BYTES)))
        except FileNotFoundError:
            return Manifest()
        except ValueError as error:
            hint = "move the directory away; what it keeps of others' plugins is in it under their names"
            raise CniError(Code.DECODING_FAILURE, f"{path} is not a manifest of podwire: {error}", hint) from error

    def note(self, manifest: Manifest) -> None:
        """Writes the manifest atomically."""
        directory = os.path.join(self.path, _KEPT)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        text = gojson.dumps({"ours": manifest.ours, "conf": manifest.conf}, indent=2) + "\n"
        write_atomically(os.path.join(directory, _MANIFEST), text.encode())

    def _plan(self, new_hash: str) -> None:
        for name in self.names:
            present = self._present(name)
            done = "create" if not present else "leave" if present == new_hash else "replace"
            self.actions.append(f"{done} {os.path.join(self.path, name)}")

    def _keep(self, names: Sequence[str], new_hash: str) -> None:
        """Keeps a link to each other vendor's file under `names`, then adds `new_hash` to the manifest."""
        manifest = self.manifest()
        directory = os.path.join(self.path, _KEPT)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        for name in names:
            present, kept = self._present(name), self._kept(name)
            if not present or present in (*manifest.ours, new_hash):
                continue
            if is_damaged(os.path.join(self.path, name)):
                self.actions.append(f"replaced {os.path.join(self.path, name)}: it was a damaged podwire")
                continue
            if kept and self._hash(kept[-1]) == present:
                continue  # kept by an interrupted installation
            place = os.path.join(directory, f"{name}~{_number(kept[-1]) + 1}" if kept else name)
            _link(os.path.join(self.path, name), place, f"{place}.new")
            self.actions.append(f"kept the previous {name}: {place}")
        durable.synchronize(directory)
        if new_hash not in manifest.ours:
            self.note(Manifest([*manifest.ours, new_hash], manifest.conf))

    def _put(self, fresh: str, name: str) -> None:
        place = os.path.join(self.path, f"{_NEW}-{name}")
        _link(fresh, place, f"{_NEW}-copy")
        os.rename(place, os.path.join(self.path, name))
        self.actions.append(f"installed {os.path.join(self.path, name)}")

    def _remove_installed(self, program: str) -> None:
        manifest = self.manifest()
        self._restore({*manifest.ours, self._hash(program)})
        for path, sha256 in manifest.conf.items():
            self._unconfigure(path, sha256)

    def _restore(self, ours: set[str]) -> None:
        """Removes podwire's files, the tool last, and restores the newest kept file of each name."""
        for name in self.names:
            path, present, kept = os.path.join(self.path, name), self._present(name), self._kept(name)
            if present and present not in ours and not is_damaged(os.path.join(self.path, name)):
                self.actions.append(f"left {path}: it is not podwire's")
            elif present and kept:
                self.actions.append(f"restored {path}")
                if not self.dry_run:
                    os.rename(kept[-1], path)
            elif present:
                self.actions.append(f"removed {path}")
                self.removed.append(path)
                if not self.dry_run:
                    os.unlink(path)

    def _unconfigure(self, path: str, sha256: str) -> None:
        try:
            same = hashlib.sha256(files.read(path, gojson.MAX_BYTES)).hexdigest() == sha256
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError):
            same = False  # a directory, a device, a longer file
        if same and not self.dry_run:
            os.unlink(path)
        self.actions.append(f"removed {path}" if same else f"left {path}: it was changed since")

    def _forget(self) -> None:
        """Removes the manifest, and the directory of kept files if it is empty."""
        directory = os.path.join(self.path, _KEPT)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, _MANIFEST))
        for name in self.names:  # an interrupted installation may have kept a file that is still in place
            for kept in self._kept(name):
                if self._hash(kept) == self._present(name):
                    os.unlink(kept)
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            pass
        except OSError:
            self.actions.append(f"left {directory}: it has older files of other vendors")

    def _kept(self, name: str) -> list[str]:
        """Returns the kept files of a name, the oldest first; some of them may have been restored."""
        directory = os.path.join(self.path, _KEPT)
        entries = os.listdir(directory) if os.path.isdir(directory) else []
        kept_names = [one for one in entries if re.fullmatch(rf"{re.escape(name)}(~[1-9][0-9]*)?", one)]
        return sorted((os.path.join(directory, one) for one in kept_names), key=_number)

    def _present(self, name: str) -> str:
        """Returns the hash of the file with a name (of a symbolic link, its target), "" if there is none."""
        path = os.path.join(self.path, name)
        return self._hash(path) if os.path.lexists(path) else ""

    def _hash(self, path: str) -> str:
        """Returns a file's SHA-256 sum, or a symbolic link's target."""
        if os.path.islink(path) and not path.startswith("/proc/"):
            return f"-> {os.readlink(path)}"
        status = os.stat(path)
        known = status.st_dev, status.st_ino, status.st_mtime_ns
        if known not in self._hashes:
            with open(path, "rb") as file:
                self._hashes[known] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._hashes[known]

    def _require_regular_files(self) -> None:
        for name in self.names:
            path = os.path.join(self.path, name)
            with suppress(FileNotFoundError):
                mode = os.lstat(path).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                    raise CniError(Code.IO_FAILURE, f"{path} is neither a file nor a link", "move it away")

    def _sweep(self) -> None:
        """Removes temporary files, also those of a killed process."""
        kept = os.path.join(self.path, _KEPT)
        half = [os.path.join(self.path, name) for name in os.listdir(self.path) if name.startswith(_NEW)]
        if os.path.isdir(kept):
            half += [os.path.join(kept, name) for name in os.listdir(kept) if name.endswith(_DRAFTS)]
        for path in half:
            os.unlink(path)

    def locked(self) -> AbstractContextManager[None]:
        """Locks the directory against other installations; raises CniError(11) if one is running."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return exclusive_lock(descriptor, f"is installing into {self.path}")


def is_packaged(directory: str, names: Iterable[str]) -> bool:
    """Returns whether files of the Debian package have these names in a directory."""
    try:
        packaged = files.read(_PACKAGE, gojson.MAX_BYTES).decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return False
    return not {os.path.join(directory, name) for name in names}.isdisjoint(packaged)


def write_atomically(path: str, content: bytes, mode: int = 0o644) -> None:
    """Writes a file atomically, with the permissions `mode` less the umask; raises OSError."""
    durable.write(path, content, mode, draft=f"{path}.podwire-new")


def filesystem_error(action: str, error: OSError) -> CniError:
    """Returns a failed file operation as an error, with a fix if one is known."""
    where = f" ({error.filename})" if error.filename else ""
    msg = f"cannot {action}: {error.strerror}{where}"
    return CniError(Code.IO_FAILURE, msg, _HINTS.get(error.errno or 0, ""))


@contextmanager
def _filesystem_errors(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise filesystem_error(action, error) from error


def _manifest(body: object) -> Manifest:
    """Reads a manifest; raises ValueError."""
    ours, conf = (body.get(key) for key in ("ours", "conf")) if isinstance(body, dict) else (None, None)
    if not isinstance(ours, list) or not isinstance(conf, dict):
        raise ValueError('"ours" or "conf" is missing')
    return Manifest([*map(str, ours)], {str(path): str(sha256) for path, sha256 in conf.items()})


def _copy(source: str, target: str) -> None:
    """Copies a program and writes it to the disk (fsync)."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755)
    with open(source, "rb") as reader, open(descriptor, "wb") as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            writer.write(chunk)
        writer.flush()
        os.fchmod(descriptor, 0o755)  # whatever the umask
        os.fsync(descriptor)


def _number(kept: str) -> int:
    """Returns the number of a kept file: 1 for "bridge", 2 for "bridge~2"."""
    return int(kept.rpartition("~")[2]) if "~" in os.path.basename(kept) else 1


def _link(source: str, target: str, draft: str) -> None:
    """Creates a hard link, or where links are impossible a copy, written as `draft` first."""
    with suppress(FileNotFoundError):
        os.unlink(target)
    try:
        os.link(source, target, follow_symlinks=False)
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    draft = os.path.join(os.path.dirname(target), os.path.basename(draft))
    with suppress(FileNotFoundError):
        os.unlink(draft)
    if os.path.islink(source):
        os.symlink(os.readlink(source), draft)
    else:
        _copy(source, draft)
        status = os.stat(source)
        os.utime(draft, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.chmod(draft, stat.S_IMODE(status.st_mode))
    os.rename(draft, target)


def _try(program: str, names: Sequence[str]) -> None:
    """Runs the new file before it is installed under any name; raises CniError(5)."""
    action = f"run {program}"
    try:
        (outcome,) = child.run(child.ChildCommand((program, "list"), {}, capture_stderr=True), limit_s=30)
    except OSError as error:
        hint = "the file system may be mounted noexec: choose another directory, or remount it with exec"
        raise CniError(Code.IO_FAILURE, f"cannot {action}: {error.strerror}; nothing was changed", hint) from error
    if outcome.status or {*outcome.stdout.decode("utf-8", "replace").split(), "podwire"} != {*names}:
        hint = "install with the executable in dist/bin: ./podwire install"
        msg = f"{program} does not work here ({outcome.ending}); nothing was changed"
        raise CniError(Code.IO_FAILURE, msg, hint)
