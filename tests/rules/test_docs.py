"""The documents match the code: options, links, examples, commands, lists of files, figures, systemd's units."""

import contextlib
import io
import json
import re
import runpy
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest

from cni import conf as cni_conf
from cni import keys
from cni.args import CmdArgs
from cni.keys import BOOLEAN, CIDR, INTEGER, IP, LIST, OBJECT, STRING, Key
from cni.result import from_json
from podwire import cli
from podwire.commands import COMMANDS
from podwire.main import PLUGINS
from tests.support.binaries import ROOT
from tests.support.markdown import DOCS, Document, documents

SECTIONS = ("Options", "Result", "What it leaves on the host", "Differences from the reference plugin", "Limits")
PARSER = cli.build_parser()
PAGES = [Document(path) for path in sorted(DOCS.glob("*.md"))]
# Objects that only contain other keys; the tables list those.
CONTAINERS = {"ipam", "args", "args.cni", "runtimeConfig"}
WORDS = {STRING: "string", BOOLEAN: "boolean", INTEGER: "integer", IP: "IP address", CIDR: "CIDR", OBJECT: "object"}
PLURALS = {kind: f"{word}{'es' * word.endswith('s') or 's'}" for kind, word in WORDS.items()}
PLURALS |= {LIST: "lists of objects"}


def page_of(plugin: str) -> Document:
    return Document(DOCS / f"{plugin}.md")


def paths(keys_read: tuple[Key, ...], start: str = "") -> Iterator[tuple[str, str]]:
    """Yields each key in the notation of the tables, `ipam.ranges[][].subnet`, with its type as the tables name it."""
    for key in keys_read:
        path = start + key.name
        yield path, type_of(key)
        below = path + "[]" * ((key.kinds == (LIST,)) + (key.of == (LIST,)))
        yield from paths(key.keys, f"{below}.")


def type_of(key: Key) -> str:
    if key.kinds == (LIST,):
        return f"list of {PLURALS[key.of[0]]}"
    if key.kinds == (OBJECT,) and key.of:
        return f"object of {PLURALS[key.of[0]]}"
    if len(key.kinds) == 1:
        return WORDS[key.kinds[0]]
    texts = [f'`"{choice}"`' for choice in key.choices] if key.choices else ["string"]
    return " or ".join([*(WORDS[kind] for kind in key.kinds if kind != STRING), *texts])


def list_documented(document: Document) -> Iterator[tuple[str, str]]:
    """Yields the keys of a page's option tables with their types; `{a,b}` in a key is each of them."""
    for table in document.tables():
        for row in table:
            if "key" not in row or "type" not in row or row["key"].startswith("`CNI_ARGS`"):
                continue
            for text in re.findall(r"`([^`]+)`", row["key"]):
                start, brace, rest = text.partition("{")
                for one in rest.rstrip("}").split(",") if brace else [""]:
                    yield start + one, row["type"]


@pytest.mark.parametrize("name", PLUGINS)
def test_every_plugin_has_a_page(name):
    """A plugin has a page with options, result, what it leaves, its verbs, differences and limits."""
    headings = page_of(name).headings()
    assert headings[0] == name
    assert [section for section in SECTIONS if section not in headings] == []
    assert any(heading.endswith("CHECK, DEL, GC, STATUS") for heading in headings)


def test_index_has_every_page():
    """The index docs/README.md has a link to each page."""
    index = {target.partition("#")[0] for target in Document(DOCS / "README.md").links()}
    assert {document.path.name for document in PAGES} - index == {"README.md"}


@pytest.mark.parametrize("name", PLUGINS)
def test_option_tables_have_the_keys_of_the_code(name):
    """A page's option tables name each key that the plugin reads, with its type, and no other."""
    expected = dict(paths(PLUGINS[name].keys))
    documented_keys = list(list_documented(page_of(name)))
    assert len(documented_keys) == len(dict(documented_keys)), "a key is in two rows"
    common = {path for path, _ in paths(keys.COMMON) if "." in path}  # the specification's keys, documented once: dns
    assert expected.keys() - CONTAINERS - common - dict(documented_keys).keys() == set(), "not documented"
    assert [
        f"{path}: {expected.get(path, 'no such key')}" for path, kind in documented_keys if expected.get(path) != kind
    ] == []


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(DOCS.parent)))
def test_links_have_targets(path):
    """Every relative link names an existing file, and an existing heading in it."""
    broken = []
    for target in Document(path).links():
        file_name, _, anchor = target.partition("#")
        file = (path.parent / file_name).resolve() if file_name else path
        if not file.exists() or (anchor and anchor not in Document(file).anchors()):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("document", PAGES, ids=lambda document: document.path.name)
def test_plugins_accept_the_examples(document):
    """Every JSON block is valid, and a configuration or result in it is accepted by its plugins.

    A part of a configuration without a type belongs to the page's plugin.
    """
    for block in document.blocks("json"):
        value = json.loads(block)
        if "interfaces" in value or "ips" in value:
            from_json(value, value["cniVersion"])
            continue
        common = {"cniVersion": value.get("cniVersion", "1.1.0"), "name": value.get("name", "net")}
        for plugin in value.get("plugins", [value]):
            accept({"type": document.path.stem, **common, **plugin})


def accept(config: dict[str, Any]) -> None:
    """Parses a configuration with its plugin and its IPAM plugin; raises CniError."""
    text = json.dumps(config).encode()
    args = CmdArgs("ADD", "id", "/run/netns/pod", "eth0", "", (), {}, text)
    for kind in (config.get("type", ""), config.get("ipam", {}).get("type", "")):
        plugin = PLUGINS.get(kind)
        if plugin and plugin.parse:
            plugin.parse(args, cni_conf.parse(text))


SVG = "{http://www.w3.org/2000/svg}"
CHARACTER_PX = 7.0  # the average at 13 px, in a font as wide as DejaVu Sans


@pytest.mark.parametrize(("name", "figure"), [("add", "sequence"), ("image", "image")])
def test_figures_are_up_to_date(name, figure):
    """The pictures in docs/ are the output of docs/figures.py, for light and dark mode, and their texts fit in them."""
    drawn = runpy.run_path(str(DOCS / "figures.py"))[figure]()
    assert (DOCS / f"{name}.svg").read_text() == drawn
    assert "prefers-color-scheme: dark" in drawn
    root = ElementTree.fromstring(drawn)
    texts = [item for item in root.iter(f"{SVG}text") if item.attrib.get("text-anchor") != "middle"]
    ends = [float(item.attrib["x"]) + CHARACTER_PX * len(item.text or "") for item in texts]
    assert max(ends) <= float(root.attrib["width"])


@pytest.mark.parametrize("document", PAGES, ids=lambda document: document.path.name)
def test_commands_of_the_tool_exist(document):
    """Every command line of `podwire` in a page is accepted by the tool's parser; `...` stands for any argument."""
    names = {command.name for command in COMMANDS}
    bad = []
    for line in filter(re.compile(r"podwire [a-z-]").match, document.code()):  # not the word alone
        words = shlex.split(re.split(r" [|>] ", line)[0], comments=True)[1:]
        alternatives = words[0].split("|")
        known = set(alternatives) <= names or words[0].startswith("-")
        if not known or (len(words) > 1 and not is_accepted([alternatives[0], *words[1:]])):
            bad.append(line)
    assert bad == []


def is_accepted(words: list[str]) -> bool:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            PARSER.parse_args(words)
        except SystemExit as end:
            return end.code == 0  # --help
    return True


FOLDERS = sorted(path.parent for room in ("plugins", "ipam") for path in (ROOT / room).glob("*/README.md"))
FOLDERS += [ROOT / "agent", ROOT / "agent" / "pools", ROOT / "tests" / "support"]
MAX_README_LINES = 110


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_readme_of_a_folder_lists_its_files(folder):
    """The table in a README names each module of its folder once, and no other file there."""
    (table,) = Document(folder / "README.md").tables()
    named = [name for row in table for name in re.findall(r"`([^`/]*\.py)`", row["file"])]
    assert sorted(named) == sorted(path.name for path in folder.glob("*.py") if path.name != "__init__.py")


def test_readme_is_short():
    """README has at most 110 lines."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


REPAIR = re.findall(r"```ini\n(\[Unit\].*?)```", (ROOT / "docs" / "repair.md").read_text(), re.DOTALL)
METRICS = {path.name: path.read_text() for path in (ROOT / "deploy" / "systemd").glob("podwire-metrics.*")}


@pytest.mark.parametrize("units", [{"podwire-repair.service": REPAIR[0]}, METRICS], ids=["repair", "metrics"])
def test_systemd_accepts_the_units(tmp_path, units):
    """The units pass systemd-analyze without a warning."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    for name, text in units.items():
        (tmp_path / name).write_text(text.replace("/opt/cni/bin/podwire", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", *(tmp_path / name for name in units)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_units_are_complete():
    """The page has one unit; the service of the metrics, which has a timer, writes what --file accepts."""
    assert len(REPAIR) == 1
    assert METRICS.keys() == {"podwire-metrics.service", "podwire-metrics.timer"}
    pattern = r"^ExecStart=/opt/cni/bin/podwire metrics --file \S+/podwire\.prom$"
    assert re.search(pattern, METRICS["podwire-metrics.service"], re.MULTILINE)
