"""The tool's output with hostile names, and on a full disk."""

import errno
import io
import json
import os

import pytest

from podwire import cli
from podwire.main import PLUGINS
from podwire.output import Output


class FullDisk(io.StringIO):
    """A stream on a full disk, whose error is raised by flush."""

    def flush(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("text", ["\x1b[31m", "\x9b31m", "\u202eabc", "\x7f", "\U000e0041\U0001f980", "\udcff", "a\nb"])
def test_json_has_no_control_characters(text):
    """In a JSON document every unprintable character is escaped, and parsers read it unchanged."""
    stream = io.StringIO()
    Output(stream, as_json=True).print_json({"name": text, text: [text]})
    printed = stream.getvalue()
    assert printed.replace("\n", "").isprintable()
    assert json.loads(printed) == {"name": text, text: [text]}


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["show", "--json", "--conf-dir=/proc/self/mem"]])
def test_unwritable_output_is_a_failure(capsys, words):
    """If the output cannot be written, the command fails and prints the reason on stderr."""
    assert cli.run(words, {}, FullDisk(), PLUGINS) == 3
    assert capsys.readouterr().err == "podwire: a system call failed: No space left on device\n"
