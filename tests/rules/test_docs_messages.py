"""The troubleshooting page quotes messages that exist in the source."""

import errno
import os
import re
from collections.abc import Iterator

from podwire.main import PLUGINS
from tests.support.markdown import DOCS, Document
from tests.support.sources import FILLED, messages

ROOMS = ("process", "cni", "kernel", "attachment", "ipam", "plugins")
PAGE = Document(DOCS / "troubleshooting.md")
ANSWERS = {os.strerror(number).lower() for number in errno.errorcode}


def quoted() -> Iterator[str]:
    """Yields the messages of the page: the code in the column `printed` of its tables."""
    for table in PAGE.tables():
        yield from (message for row in table if "printed" in row for message in re.findall("`([^`]+)`", row["printed"]))


def occurs(message: str, texts: list[str]) -> bool:
    """Returns whether one of the texts contains the message, in which `...` stands for values."""
    words = message.split("...")
    pattern = re.compile(f"{FILLED}+".join(map(re.escape, words)))
    longest = max(words, key=len)
    return any(pattern.search(text) for text in texts if longest in text) or is_refusal(message, texts)


def is_refusal(message: str, texts: list[str]) -> bool:
    """Returns whether it is a kernel error: "failed to <description of a request>: <text of errno>"."""
    parts = re.fullmatch("failed to (.+?): (.+)", message)
    if parts is None:
        return False
    description, answer = parts.groups()
    return (description == "..." or occurs(description, texts)) and (answer == "..." or answer in ANSWERS)


def test_explained_messages_exist_in_the_source():
    """Each message on the page is in the source, to the letter."""
    texts = list(messages(*ROOMS))
    assert [message for message in quoted() if not occurs(message, texts)] == []


def test_page_has_enough_messages():
    """The page has a section for each plugin but loopback and host-device, and more than seventy messages."""
    assert PLUGINS.keys() - {"loopback", "host-device"} - set(PAGE.headings()) == set()
    assert len(set(quoted())) > 70
