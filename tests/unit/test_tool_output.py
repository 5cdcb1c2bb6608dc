"""What the tool prints, whatever the names are that it prints, and wherever to."""

import errno
import io
import json
import os

import pytest

from podwire import cli
from podwire.main import PLUGINS
from podwire.output import Output


class Full(io.StringIO):
    """A stream on a disk that is full, which is told when the last of it is written."""

    def flush(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("text", ["\x1b[31m", "\x9b31m", "\u202eabc", "\x7f", "\U000e0041\U0001f980", "\udcff", "a\nb"])
def test_json_has_nothing_that_a_terminal_obeys(text):
    """In a document every character that cannot be printed is escaped, and means the same."""
    stream = io.StringIO()
    Output(stream, as_json=True).print_json({"name": text, text: [text]})
    printed = stream.getvalue()
    assert printed.replace("\n", "").isprintable()
    assert json.loads(printed) == {"name": text, text: [text]}


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["show", "--json", "--conf-dir=/proc/self/mem"]])
def test_what_could_not_be_printed_has_failed(capsys, words):
    """Where the output cannot be written the status says that the command failed, and stderr why."""
    assert cli.run(words, {}, Full(), PLUGINS) == 3
    assert capsys.readouterr().err == "podwire: a system call failed: No space left on device\n"
