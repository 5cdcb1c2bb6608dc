"""The files of the node agent: the modules that it imports, the compiled extension, and the program that starts them.

One rule: a module is packed because the agent imports it. All imports are at the top of modules (CONTRIBUTING.md), so
that importing `agent.main` shows them.

    python -m pack.release.agent_files        cross-compiles the extension for arm64, for `make arm64`
"""

from __future__ import annotations

import json
import py_compile
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pack import target
from pack.build import ROOT

DIRECTORY = "usr/lib/podwire-agent"
PROGRAM = "usr/sbin/podwire-agent"
# Debian 12 has an older pyroute2, without what kernel/codec.py uses.
VENDORED = ("pyroute2",)
_ROOMS = ("agent", "attachment", "cni", "ipam", "kernel", "process")
_ARM64 = ROOT / "build" / "arm64"
_EXTENSION_ARM64 = _ARM64 / "_podwire.so"
_EXTENSION = ("_podwire.c", "_netlink.c", "_background.c")
_IMPORTED = """\
import agent.main, json, sys
print(json.dumps({name: getattr(module, "__file__", None) for name, module in sys.modules.items()}))
"""
# -I: neither the environment nor the current directory changes what root imports.
_START = f"""\
#!/usr/bin/python3 -I
import sys

sys.path.insert(0, "/{DIRECTORY}")

from agent.main import console

console()
"""


def program() -> bytes:
    """Returns the script that starts the agent, for PROGRAM."""
    return _START.encode()


def modules(machine: str) -> dict[str, bytes]:
    """Returns the content of the modules and of the extension for a machine, by their path below DIRECTORY."""
    packed = (*_ROOMS, *VENDORED)
    files = {path: Path(file).read_bytes() for path, file in _imported().items() if path.split("/")[0] in packed}
    # kernel/codec.py replaces the package by an empty one, so that it imports three of its modules, not 350.
    files |= {f"{name}/__init__.py": b"" for name in VENDORED}
    extension = _EXTENSION_ARM64.read_bytes() if machine == "arm64" else _extension(target.native())
    gnu = {"amd64": "x86_64", "arm64": "aarch64"}[machine]
    name = f"_podwire.{sys.implementation.cache_tag}-{gnu}-linux-gnu.so"
    return {**dict(sorted(files.items())), name: extension}


def bytecode(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns compiled modules, by their path below DIRECTORY, for an image whose files never change."""
    compiled_files = {}
    for name, content in files.items():
        if name.endswith(".py"):
            parent, _, stem = name.removesuffix(".py").rpartition("/")
            path = f"{parent}/__pycache__/{stem}.{sys.implementation.cache_tag}.pyc"
            compiled_files[path] = compiled(content, f"/{DIRECTORY}/{name}", checked=False)
    return compiled_files


def compiled(source: bytes, shown: str, *, checked: bool) -> bytes:
    """Returns a compiled module; `shown` is its path in tracebacks. `checked`: Python compares it with its source."""
    modes = py_compile.PycInvalidationMode
    mode = modes.CHECKED_HASH if checked else modes.UNCHECKED_HASH
    with tempfile.TemporaryDirectory() as directory:
        file, target = Path(directory, "source.py"), Path(directory, "compiled.pyc")
        file.write_bytes(source)
        py_compile.compile(str(file), str(target), shown, doraise=True, invalidation_mode=mode)
        return target.read_bytes()


def _imported() -> dict[str, str]:
    """Returns the files of all modules that the agent imports, by their path below a directory of modules."""
    done = subprocess.run([sys.executable, "-c", _IMPORTED], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the agent cannot be imported:\n{done.stderr}")
    files: dict[str, str | None] = json.loads(done.stdout)
    paths = {}
    for name, file in files.items():
        if file and file.endswith(".py"):
            is_package = Path(file).name == "__init__.py"
            paths[name.replace(".", "/") + ("/__init__.py" if is_package else ".py")] = file
    return paths


def _extension(platform: target.Target) -> bytes:
    """Compiles kernel/_podwire.c and its companions for a Python, without paths of this machine in the file."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "_podwire.so")
        options = ["-shared", "-fPIC", "-O2", "-DNDEBUG", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-s"]
        options += ["-Wl,-z,relro,-z,now", "-Wl,--build-id=sha1", *(f"-I{one}" for one in platform.includes)]
        sources = [f"kernel/{name}" for name in _EXTENSION]
        subprocess.run([f"{platform.tools}gcc", *options, "-o", out, *sources], cwd=ROOT, check=True)
        return out.read_bytes()


if __name__ == "__main__":
    _EXTENSION_ARM64.write_bytes(_extension(target.arm64(_ARM64 / "sysroot")))
