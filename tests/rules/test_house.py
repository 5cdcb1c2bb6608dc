"""Rules for the code that no other tool checks: imports, docstrings, the length of files and functions."""

import re
import subprocess
import sys

from tests.support.binaries import ROOT
from tests.support.sources import PRODUCT, ROOMS, Public, files, sources

MAX_LINES = 400
MAX_FUNCTION_LINES = 40

# A verb in the third person: no verb ends in "ss" there, and with a, i or u before the s it is "has", "is", "was".
VERB = re.compile(r"[A-Z][a-z]*[b-hj-rtv-z]s,? (?!of )")
# Words that look like such a verb, and "does", which says nothing.
NO_VERBS = ("Always", "Does", "Its", "Others", "Ours", "Perhaps", "Sometimes", "Tells")
# An article, another determiner, a possessive ("podwire's") or a constant ("RTM_NEWLINK") begins a noun phrase.
NOUN_PHRASE = re.compile(r"(A|An|The|All|Both) [`\w]|[\w-]+'s \w|[A-Z]{2}[A-Z0-9_]+\b")


def test_every_module_has_a_docstring():
    """Every module has a docstring."""
    assert [name for name, source in sources().items() if not source.docstring] == []


def test_every_test_has_one_sentence():
    """The first paragraph of a test's docstring is one sentence; details may follow in another paragraph."""
    bad = [
        f"{name}: {function.name}"
        for name, source in sources().items()
        for function in source.functions
        if name.startswith("tests/") and function.name.startswith("test_") and not is_a_sentence(function.docstring)
    ]
    assert bad == []


def is_a_sentence(text: str | None) -> bool:
    """Returns whether the first paragraph of `text` starts with no small letter and ends with its only full stop."""
    text = (text or "").partition("\n\n")[0].rstrip()
    if not text.endswith(".") or text.endswith(".."):
        return False
    return not text[0].islower() and not re.search(r"[.!?] [A-Z]", text)


EXPENSIVE = {"asyncio", "email", "http.client", "jeepney.io", "random", "ssl", "subprocess", "tempfile"}


def test_expensive_modules_are_not_imported():
    """The executable does not import modules that cost time at each start or import hundreds of other modules.

    `random` is seeded at each start; the others import many modules. Of pyroute2 and jeepney only the codecs are used.
    """
    code = "import sys, podwire.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    modules = done.stdout.split()
    assert EXPENSIVE.isdisjoint(modules)
    assert len([name for name in modules if name.startswith("pyroute2")]) < 20


def test_files_have_at_most_400_lines():
    """Files have at most 400 lines."""
    paths = files(*ROOMS, suffixes=(".py", ".c", ".h", ".sh"))
    assert [str(path) for path in paths if path.read_text().count("\n") > MAX_LINES] == []


def test_functions_have_at_most_40_lines():
    """Functions have at most 40 lines without their docstring."""
    long = [
        f"{name}: {function.name}"
        for name, source in sources().items()
        for function in source.functions
        if function.lines > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_docstrings_begin_with_a_verb_or_a_noun_phrase():
    """A public function's docstring begins with a verb in the third person, a property's with a noun phrase."""
    bad = [
        f"{name}:{item.line}: {item.about}"
        for name, source in sources().items()
        for item in source.public
        if name.startswith(tuple(f"{room}/" for room in PRODUCT)) and not begins_well(item)
    ]
    assert bad == []


def begins_well(item: Public) -> bool:
    """Returns whether a docstring begins with a verb (function, class) or a noun phrase (property, class)."""
    is_verb = VERB.match(item.about) and not item.about.startswith(tuple(f"{word} " for word in NO_VERBS))
    is_noun_phrase = NOUN_PHRASE.match(item.about)
    if item.kind == "property":
        return bool(is_noun_phrase) or item.about.startswith("Whether ")
    return bool(is_verb or (item.kind == "class" and is_noun_phrase))


# Two sides of one document: what the agent writes, and its readers in other processes.
SAME_DOCUMENT = {"Grants", "LocalBlock", "LocalReport", "NodeEntry"}
# Modules of one shape, for DHCPv4, DHCPv6 and router advertisements, named with their module.
SAME_PROTOCOL = {"Client", "Event", "Identity", "Message", "State"}


def test_a_class_name_has_one_meaning():
    """No two public classes of the product have the same name."""
    places: dict[str, list[str]] = {}
    for name, source in sources().items():
        if name.startswith(tuple(f"{room}/" for room in PRODUCT)):
            for word in re.findall(r"^class ([A-Z]\w*)", source.text, re.MULTILINE):
                places.setdefault(word, []).append(name)
    shared = {word: names for word, names in places.items() if len(names) > 1}
    assert shared.keys() == SAME_DOCUMENT | SAME_PROTOCOL
    assert all(name.startswith("ipam/dhcp/") for word in SAME_PROTOCOL for name in shared[word])


def test_comments_have_no_marks_of_unfinished_work():
    """Unfinished work is described in issues, not in the code."""
    mark = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    paths = files(*ROOMS, suffixes=(".py", ".c", ".h", ".sh", ".md", ".toml"))
    assert [str(path) for path in paths if mark.search(path.read_text())] == []
