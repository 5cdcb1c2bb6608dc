"""The vocabulary of docs/glossary.md: names, docstrings, comments and messages avoid the words that it replaced."""

import re

from tests.support.sources import FILLED, Source, parse, sources
from tests.unit.test_doctor_texts import BAD, QUOTED

# Words that identifiers must not contain, and their replacements.
IDENTIFIERS = {
    "apart": "background",
    "asked": "the noun: options, requested",
    "claims": "port conflicts",
    "cure": "fix, hint",
    "cures": "fixes, hints",
    "doing": "description",
    "fitted": "the effect: compute_mtu, ensure_filtering",
    "found": "existing_rules, or the noun",
    "given": "the noun: ipam_result, options",
    "inside": "container_veth, container_link",
    "leads": "forwards, target",
    "living": "running",
    "made": "created",
    "mend": "repair",
    "outside": "host_veth, host_link",
    "own": "conf (the plugin's), net_conf (the network's), or the noun",
    "pick": "get_attributes, attribute offsets",
    "picks": "get_attributes, attribute offsets",
    "rehearse": "warm_up, try",
    "rehearsal": "warm_up, dry_run",
    "retract": "remove_rules",
    "scenes": "scenarios",
    "settled": "the effect: ensure_filtering",
    "taken": "used, allocated",
    "tell": "report, log, describe",
    "tells": "reports, describes",
    "told": "description, reported",
    "wanted": "desired, or the noun",
    "whose": "owner",
}

# Patterns that sentences must not contain, and their replacements.
PROSE = {
    r"\b(tell|tells|told|telling)\b": "reports, logs, prints, describes, returns whether",
    r"\b(mend|mends|mended|mending)\b": "repair",
    r"\b(cure|cures|cured)\b": "fix",
    r"\b(rehears\w+|cardboard|scenes?)\b": "warm-up, dry run, scenario",
    r"\b(nobody|anybody|somebody|whoever)\b": "the noun: no process, a caller, another plugin",
    r"\b(for|of|by|to|from|with|and|or|than) who\b": "a noun before 'who': for node operators",
    r"(?:^|[.:;] )[Ww]ho(se)?\b(?!.*\?)": "a noun: the container that ..., the plugin that ...",
    r"\b(taken|takes?|took|taking) (it |them |that |this )?back\b": "roll back (ADD), reclaim (leases)",
    r"\bleads? (a |ports? |host ports? |it )?(of the host )?to (a |the )?pods?\b": "forwards, publishes",
}

# Exceptions: texts of the reference plugins, quotations and JSON keys, as a part of the reported line, by file.
ALLOWED: dict[str, tuple[str, ...]] = {
    "podwire/commands/doctor.py": ('"cure',),  # a JSON key, and the label before a fix
    "podwire/commands/ipam.py": ('"cure"',),  # a JSON key
    "podwire/node/model.py": ('"cure"',),  # a JSON key
    "tests/rules/test_vocabulary.py": ("who is gone is told", "for who looks"),  # the example of the second test
}

# All patterns, for one search in most sentences.
SUSPECT = re.compile("|".join(PROSE), re.MULTILINE)


def retired_in(source: Source) -> list[str]:
    """Returns the retired words of a module, each with its replacement: in names, strings and comments."""
    words = {word for name in source.names for word in re.split(r"_+", name.lower())}
    phrases = (string for string in source.strings if " " in string.strip())
    comments = re.findall(r"# ?([^!\n].*)", source.text)
    return [f"{word}: use {IDENTIFIERS[word]}" for word in sorted(words & IDENTIFIERS.keys())] + [
        f"{match[0].strip()!r} in {sentence[max(0, match.start() - 30) : match.end() + 30]!r}: use {replacement}"
        for sentence in (*comments, *phrases)
        if SUSPECT.search(sentence)
        for pattern, replacement in PROSE.items()
        if (match := re.search(pattern, sentence, re.MULTILINE))
    ]


def test_no_retired_word_is_used():
    """Identifiers, docstrings, comments and messages use the words of the glossary."""
    retired = {
        path: [line for line in retired_in(source) if not any(part in line for part in ALLOWED.get(path, ()))]
        for path, source in sources().items()
    }
    assert {path: lines for path, lines in retired.items() if lines} == {}


def test_retired_words_are_reported():
    """Retired words are reported in names, docstrings, comments and messages."""
    text = 'def own_ips(found):\n    """Tells whose it is."""\n    raise E("who is gone is told")  # for who looks\n'
    assert len(retired_in(parse(text))) == 5


def test_texts_with_values_are_prose():
    """No text of the tool, with a name in place of each value, has a doubled word, or one ending for both numbers."""
    mistake = re.compile(f"{BAD['a doubled word'].pattern}|{BAD['singular and plural'].pattern}")
    tool = [source for path, source in sources().items() if path.startswith("podwire/")]
    texts = {text.replace(FILLED, "NAME") for source in tool for text in source.strings | source.templates}
    assert [text for text in texts if mistake.search(QUOTED.sub("", text))] == []
