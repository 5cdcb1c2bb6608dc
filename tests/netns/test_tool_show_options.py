"""`podwire show` on a terminal, its selections and files, and progress: what an operator sees."""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from process.version import __version__
from tests.netns.test_tool_top import Terminal
from tests.support import programs as stand_ins
from tests.support.namespaces import Namespace
from tests.support.tool import PORTS, Tool

_HEADERS = ("NETWORK", "CONTAINER", "POD", "INTERFACE", "HOST", "ADDRESSES")
PODS = ("default/web-0", "default/web-1", "kube-system/coredns-5d78c9869d-x7k2p")


@pytest.fixture
def pods(tool: Tool, new_sandbox: Callable[[], Namespace]) -> list[Namespace]:
    """Three pods with Kubernetes' names; the first publishes a port."""
    sandboxes = []
    for number, name in enumerate(PODS):
        namespace, _, pod = name.partition("/")
        arguments = (f"K8S_POD_NAMESPACE={namespace}", f"K8S_POD_NAME={pod}", "IgnoreUnknown=1")
        sandboxes.append(new_sandbox())
        words = ["add", "net", sandboxes[-1].name, "--container-id", f"{number}" * 64]
        words += [word for argument in arguments for word in ("--args", argument)]
        tool.succeed(*words, *(PORTS if number == 0 else ()))
    return sandboxes


def on_terminal(tool: Tool, columns: int, *words: str, env: dict[str, str] | None = None) -> str:
    """Returns what a command prints on a terminal with so many columns, stderr included, without colours."""
    text = Terminal(tool, *words, columns=columns, env=env).read_all()
    return re.sub(r"\x1b\[[\d;]*m", "", text).replace("\r\n", "\n")


def test_rows_fit_the_terminal(tool: Tool, pods: list[Namespace]):
    """On a terminal of 40 to 200 columns no line is longer, and every pod is printed with its address and state."""
    for columns in (40, 60, 80, 150, 200):
        printed = on_terminal(tool, columns, "show")
        assert max(map(len, printed.splitlines())) <= columns
        for number, pod in enumerate(PODS):
            assert pod in printed
            assert f"10.22.0.{number + 2}/24" in printed
        assert len(re.findall(r"\bok$", printed, re.MULTILINE)) == 3
        assert bool(re.search(r"veth\w{8}", printed)) == (columns == 40 or columns >= 150)  # blocks have all columns


def test_wide_and_pipe_have_every_column(tool: Tool, pods: list[Namespace]):
    """With --wide, and into a pipe, the table has all columns; a narrow terminal names those that it lacks."""
    narrow = on_terminal(tool, 80, "show")
    assert "INTERFACE, HOST" in narrow
    for printed in (on_terminal(tool, 80, "show", "--wide"), tool.succeed("show")):
        (headers,) = (line for line in printed.splitlines() if line.startswith("NETWORK") and "STATE" in line)
        assert headers.split() == [*_HEADERS, "HOST", "PORTS", "LIMITS", "STATE"]


def test_selection_by_pod(tool: Tool, pods: list[Namespace]):
    """A pod is selected by its full name, its name, a pattern, its container ID or its start, also in the document."""
    for pattern, expected in {
        "default/web-1": [PODS[1]],
        "web-1": [PODS[1]],
        "web-*": [*PODS[:2]],
        "2" * 12: [PODS[2]],
        "*/coredns*": [PODS[2]],
    }.items():
        assert [one["pod"] for one in tool.json("show", "--pod", pattern)["attachments"]] == expected
    printed = tool.succeed("show", "--pod", "web-1")
    assert "default/web-1" in printed
    assert "web-0" not in printed
    refusal = tool.fail(3, "show", "--pod", "coredns-5d78c9869d-x7k2")
    assert 'there is no pod "coredns-5d78c9869d-x7k2" on this node' in refusal
    assert "did you mean coredns-5d78c9869d-x7k2p?" in refusal


def test_selection_of_faults(tool: Tool, pods: list[Namespace]):
    """With --wrong only attachments with a fault are printed, and leaked objects stay; without a fault nothing is."""
    assert tool.succeed("show", "--wrong", "--no-headers") == ""
    pods[1].ip("link", "delete", "eth0")
    tool.delete_netns(pods[2])
    printed = tool.fail(1, "show", "--wrong")
    leaked = {one["pod"]: one["leaked"] for one in tool.json("show", status=1)["attachments"]}
    assert leaked == {PODS[0]: False, PODS[1]: False, PODS[2]: True}
    assert "default/web-0" not in printed
    assert re.search(r"default/web-1 .* no interface\n", printed)
    assert re.search(r"coredns-5d78c9869d-x7k2p .* gone\n", printed)
    assert "LEAKED" in printed


def test_order_and_lines_for_scripts(tool: Tool, pods: list[Namespace]):
    """With --no-headers there is a line for each attachment and nothing else, in the order of --sort."""
    pods[1].ip("link", "delete", "eth0")

    def names(*words: str) -> list[str]:
        lines = tool.run("show", "--no-headers", *words).stdout.decode().splitlines()
        return [line.split()[2] for line in lines]

    assert names("--sort", "address") == [*PODS]
    assert names("--sort", "pod") == sorted(PODS)
    assert names("--sort", "state")[0] == PODS[1]
    assert "did you mean" in tool.fail(2, "show", "--sort", "adress")


def test_document_names_node_and_version(tool: Tool, pods: list[Namespace]):
    """The document has podwire's version, the node's name and the time, and two runs differ in nothing but the time."""
    first, second = tool.json("show"), tool.json("show")
    assert (first["podwire"], first["node"]) == (__version__, os.uname().nodename)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first["time"])
    assert {**first, "time": ""} == {**second, "time": ""}


def test_map_and_page_are_written(tool: Tool, pods: list[Namespace], tmp_path: Path):
    """The files of --svg and --html have the pods, and the page doctor's findings; `-` prints only that."""
    svg, page = tmp_path / "node.svg", tmp_path / "node.html"
    tool.succeed("show", "--svg", str(svg), "--html", str(page))
    assert PODS[2] in "".join(ElementTree.fromstring(svg.read_text()).itertext())
    text = page.read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert [pod["pod"] for pod in json.loads(data)["pods"]] == [*PODS]
    assert "Findings (" in text
    assert tool.succeed("show", "--html", "-").startswith("<!DOCTYPE html>")
    assert "cannot write /none/x.html" in tool.fail(3, "show", "--html", "/none/x.html")


def test_completion_knows_networks_pods_and_namespaces(tool: Tool, pods: list[Namespace]):
    """Shells complete the names of networks, pods and network namespaces of this node."""

    def complete(command: str, *words: str) -> list[str]:
        directories = [f"--conf-dir={tool.directory}/net.d", "--cache-dir", f"{tool.directory}/cache"]
        program = f"{tool.bin_dir}/podwire"
        return tool.host.run(program, "completion", "words", "--", command, *directories, *words).split()

    assert complete("show", "n") == ["net"]
    assert complete("show", "--pod", "default/") == [*PODS[:2]]
    assert complete("show", "--pod", "cored") == []
    assert complete("show", "--sort", "a") == ["address"]
    assert pods[0].name in complete("check", "net", "")


@pytest.mark.long
def test_progress_is_for_slow_commands_on_a_terminal(tool: Tool, pods: list[Namespace], tmp_path: Path):
    """After two seconds a terminal shows what is being done, and the line is removed; a pipe gets nothing."""
    bin_dir = stand_ins.install(tmp_path / "bin", tc="sleep 3")
    archive = str(tmp_path / "node.tar.gz")
    env = {"PATH": f"{bin_dir}:/usr/sbin:/usr/bin:/sbin:/bin"}
    start = time.monotonic()
    done = tool.run("bugreport", archive, env=env)
    assert time.monotonic() - start > 3
    assert done.stderr == ""
    printed = on_terminal(tool, 120, "bugreport", archive, env=env)
    assert "\r\x1b[Kcollecting pods/" in printed
    assert printed.rindex("\r\x1b[K") < printed.index("parts in")
