"""The executable's C code for JSON (pack/json.c): its results equal those of json's Python code."""

import json
import shutil
import subprocess
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from json.encoder import py_encode_basestring
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # not in typeshed
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pack.build import ROOT
from tests.unit.test_cni_gojson import JSON_VALUES

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="compiles json.c")

DECODERS: list[dict[str, Any]] = [
    {},
    {"object_pairs_hook": tuple, "parse_int": str, "parse_float": str, "parse_constant": repr},
    {"object_hook": repr},
    {"strict": False},
]
PIECES = [*'{}[],:"\\-0.e \n\0\ufeff', "null", "NaN", "\\u00e9", "\\ud83d", "\\uDE00", "\\u", "\\n", "\\\\", "\\x"]


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module `_json`, compiled for this Python."""
    library = tmp_path_factory.mktemp("json") / "_json.so"
    include = sysconfig.get_path("include")
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{include}", ROOT / "pack/json.c", "-o", library], check=True)
    spec = spec_from_file_location("_json", library)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(scan: Any, text: str) -> object:
    """Returns a scanner's result, or its error."""
    try:
        return repr(scan(text, 0))
    except RecursionError:
        return RecursionError
    except (ValueError, StopIteration) as error:
        return type(error), str(error)


def edited(text: str, edits: list[tuple[float, str, bool]]) -> str:
    """Returns a text into which pieces are inserted, or where they replace a character."""
    for position, piece, replaces in edits:
        at = int(position * len(text))
        text = text[:at] + piece + text[at + replaces :]
    return text


EDITS = st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES), st.booleans()), max_size=3)
TEXTS = st.builds(
    edited, st.builds(json.dumps, JSON_VALUES, ensure_ascii=st.booleans(), indent=st.sampled_from([None, 1])), EDITS
)


@pytest.mark.parametrize("options", DECODERS, ids=lambda options: ",".join(options) or "plain")
@given(text=TEXTS | st.lists(st.sampled_from(PIECES)).map("".join))
@example(text="[" * 64 + "]" * 64)
@example(text="[" * 65 + "]" * 65)
@example(text='{"a":' * 2_000)
@example(text='[0, -0, 1, 999999999999999999, -1000000000000000000, "\\ud83d\\ude00"]')
@example(text='{"a": 1, "b": {}, "a": {"a": []}}')
@example(text=r'["\"\\\/\b\f\n\r\t\u0000\uFFFF", "\ud83d\ude00\uD83D", "\ud83d\n", "\ude00", "\ud83d\ud83d\ude00"]')
@example(text=r'["\u12"]')
@example(text=r'["\ud83d\u12"]')
@example(text=r'["\u+123"]')
@example(text='["\\')
@example(text='["\\u12')
def test_reads_as_the_python_code(fast: Any, options: dict[str, Any], text: str) -> None:
    """Any text gives the same value and position, or the same error, with any hooks of the decoder."""
    decoder = json.JSONDecoder(**options)
    assert read(fast.make_scanner(decoder), text) == read(py_make_scanner(decoder), text)


def test_escapes_are_read_without_python(fast: Any) -> None:
    """A text of escapes only is read without the decoder's parse_string, which is slow."""
    decoder = json.JSONDecoder()
    vars(decoder)["parse_string"] = None
    text = json.dumps(['\x07\n"\\\u00e9\U0001f600' * 1000])
    assert fast.make_scanner(decoder)(text, 0) == (json.loads(text), len(text))


@given(text=st.text() | st.text('a"\\\n\x1f\x7f\ud800'))
def test_prints_as_the_python_code(fast: Any, text: str) -> None:
    """Any text is encoded like by json's Python code."""
    assert fast.encode_basestring(text) == py_encode_basestring(text)


def test_a_key_is_one_object(fast: Any) -> None:
    """Equal keys of a text are one object."""
    pairs = json.JSONDecoder(object_pairs_hook=list)
    value, _ = fast.make_scanner(pairs)('[{"containerID": 1}, {"containerID": 2}]', 0)
    assert value[0][0][0] is value[1][0][0]
