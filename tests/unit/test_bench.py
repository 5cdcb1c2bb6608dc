"""The figures, tables and plot of bench/: samples, strace's output, the calls of pods, a simulated cluster in small."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import cluster_joins, cluster_page, kubernetes_page, page, plot
from bench.attachment import Attachment, Calls, ms_each, run_calls
from bench.cluster import fill_double
from bench.cluster_page import MAX_REQUESTS
from bench.counts import Comparison, Counts, count, markdown
from bench.figures import Figures, Row, as_json, figures, table, text_table
from bench.process import Invocation
from bench.run import write
from bench.subject import BANDWIDTH, SINGLE, Subject
from bench.versions import reference_version
from tests.support.markdown import DOCS, Document
from tests.support.namespaces import Namespace


def row(ours: list[float], reference: list[float]) -> Row:
    return Row("case", figures(ours), figures(reference))


def test_figures_of_a_series():
    """The figures of a series are median, minimum and length; an empty one is an error."""
    assert figures([3.0, 1.0, 2.0, 9.0]) == Figures(median=2.5, least=1.0, runs=4)
    with pytest.raises(ValueError, match="nothing was measured"):
        figures([])


def test_tables():
    """Columns are aligned, medians and minima are in the table's unit, ratios not."""
    assert table(("a", "n"), [("long", "1"), ("b", "100")]) == "a       n\n----  ---\nlong    1\nb     100"
    last = text_table("memory_kib", [row([2048.0, 4096.0], [4096.0])]).splitlines()[-1]
    assert last.split() == ["case", "3.00", "2.00", "4.00", "4.00", "0.75", "0.50"]


def test_json_has_every_figure():
    """A row in JSON has both implementations' figures, and podwire's medians and minima divided by the reference's."""
    assert as_json(row([1.0, 2.0, 3.0], [2.0, 8.0, 9.0])) == {
        "case": "case",
        "podwire": {"median": 2.0, "least": 1.0, "runs": 3},
        "reference": {"median": 8.0, "least": 2.0, "runs": 3},
        "ratio": 0.25,
        "ratio_of_least": 0.5,
    }


ONE_OF_EACH = """\
7  execve("/x/bridge", ["/x/bridge"], 0x7ffc /* 6 vars */) = 0
7  openat(AT_FDCWD, "/run/netns/a", O_RDONLY|O_CLOEXEC) = 3
7  openat(AT_FDCWD, "/none", O_RDONLY) = -1 ENOENT (No such file or directory)
7  sendto(4, [[{nlmsg_len=60, nlmsg_type=RTM_GETLINK}, "x"], [{nlmsg_len=40}, "y = 3"]], 100, 0, NULL, 0) = 100
7  recvfrom(4, [{nlmsg_len=36, nlmsg_type=NLMSG_ERROR}, {error=0, msg={nlmsg_len=152}}], 131072, 0, NULL, NULL) = 36
7  recvfrom(4, 0x7ffc, 131072, MSG_DONTWAIT, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)
7  sendto(5, "GET", 3, 0, NULL, 0) = 3
7  --- SIGCHLD {si_signo=SIGCHLD} ---
7  exit_group(0)                     = ?
7  +++ exited with 0 +++
"""

TWO_PROCESSES = """\
7  vfork( <unfinished ...>
8  execve("/usr/sbin/iptables-restore", ["iptables-restore"], 0x1 /* 1 var */) = 0
7  <... vfork resumed>)              = 8
7  clone3({flags=CLONE_VM|CLONE_THREAD, exit_signal=0}, 88) = 9
8  openat(AT_FDCWD, "/etc/x", O_RDONLY <unfinished ...>
9  sendmsg(3, {msg_iov=[{iov_base=[{nlmsg_len=20}, "z"], iov_len=20}]}, 0 <unfinished ...>
8  <... openat resumed>)             = 4
9  <... sendmsg resumed>)            = 20
9  recvmsg(3,  <unfinished ...>
9  <... recvmsg resumed>{msg_iov=[{iov_base=[{nlmsg_len=64}, "q"], iov_len=4096}], msg_flags=0}, 0) = 64
"""


def test_calls_of_processes_are_counted():
    """Successful opens, netlink messages and child processes count once; threads and copies of a request do not."""
    expected = Counts(processes=1, calls=8, files=1, requests=2, sends=1)
    assert count(ONE_OF_EACH.splitlines()) == expected
    expected = Counts(processes=2, calls=6, files=1, requests=1, sends=1)
    assert count(TWO_PROCESSES.splitlines()) == expected


def test_table_of_counts_has_both_implementations():
    """Each cell has podwire's count and the reference's; files, requests and CHECK are not on the page."""
    add, check = (Comparison(f"bridge {verb}", Counts(1, 125, 14), Counts(2, 1264, 30)) for verb in ("ADD", "CHECK"))
    assert markdown([add.as_json(), check.as_json()]).splitlines()[2:] == [
        "| bridge ADD | 1 / 2 | 125 / 1,264 | 0 / 0 |"
    ]


def call(program, text: str) -> Invocation:
    return Invocation(str(program), {"TEXT": text, "PATH": "/usr/bin:/bin"}, b"stdin")


@pytest.fixture
def program(tmp_path):
    """A program that prints its environment variable TEXT and its stdin, and fails if TEXT is FAIL."""
    path = tmp_path / "program"
    path.write_text('#!/bin/sh\nread -r line\necho "$TEXT $line"\n[ "$TEXT" != FAIL ] || { echo why >&2; exit 1; }\n')
    path.chmod(0o755)
    return path


def test_pods_are_limited_in_parallel(program):
    """The calls of a pod run one after another, no more pods than permitted in parallel; a failure is an error."""

    def calls(name: str) -> Calls:
        running.append(name)
        assert len(running) <= 2
        for number in ("one", "two"):
            outputs.append((yield call(program, f"{name} {number}")).decode())
        running.remove(name)

    def failing() -> Calls:
        yield call(program, "FAIL")

    running: list[str] = []
    outputs: list[str] = []
    assert ms_each([calls(name) for name in "abcde"], 2) > 0
    for name in "abcde":
        assert [text for text in outputs if text[0] == name] == [f"{name} one stdin\n", f"{name} two stdin\n"]
    with pytest.raises(RuntimeError, match="FAIL stdin\nwhy"):
        ms_each([failing()], 1)


def test_calls_of_a_list_are_in_the_order_of_libcni():
    """Each ADD gets the previous plugin's result; CHECK and DEL get the last one, and DEL runs in reverse order."""
    subject = Subject("podwire", 1, Path("/bin"), Path("/store"))
    attachment = Attachment(subject, subject.network(SINGLE), [BANDWIDTH, {"type": "tuning"}], Namespace("none"))

    def answer(one: Invocation) -> tuple[tuple[str, object], bytes]:
        config = json.loads(one.stdin)
        assert config["name"] == "single-1"
        return (config["type"], config.get("prevResult")), json.dumps({"by": config["type"]}).encode()

    last = {"by": "tuning"}
    expected = [("bridge", None), ("bandwidth", {"by": "bridge"}), ("tuning", {"by": "bandwidth"})]
    for _ in range(2):
        assert run_calls(attachment.calls("ADD"), answer) == expected
        assert run_calls(attachment.calls("CHECK"), answer) == [("bridge", last), ("bandwidth", last), ("tuning", last)]
        assert run_calls(attachment.calls("DEL"), answer) == [("tuning", last), ("bandwidth", last), ("bridge", last)]


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("1.1.1", "CNI bridge plugin v1.9.1", "1.9.1"),
        ("1.9.1+ds1-1", "CNI bridge plugin version unknown", "1.9.1"),
        ("bin", "CNI bridge plugin version unknown", ""),
        ("bin", "CNI bridge plugin v1.9.1+podwire.0.1.0", ""),
    ],
)
def test_version_of_the_reference(tmp_path, name, text, version):
    """What a plugin prints counts more than the name of its directory, also behind a link; without both: unknown."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "bridge").write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    (tmp_path / name / "bridge").chmod(0o755)
    (tmp_path / "newest").symlink_to(name)
    assert reference_version(tmp_path / name) == reference_version(tmp_path / "newest") == version
    assert reference_version(tmp_path / "absent") == ""


SVG = "{http://www.w3.org/2000/svg}"
HEAD = "reference 1.1.1"


def report(*cases: tuple[str, float, float], group: str = "ms") -> dict[str, Any]:
    rows = [Row(case, figures([ours]), figures([reference])) for case, ours, reference in cases]
    about = {"rounds": 3, "kernel": "6.1.0-9", "cpus": 2, "version": "1.9.1", "load": 2.04}
    return {"about": about, group: [as_json(row) for row in rows]}


def test_tables_have_every_case():
    """Verbs are side by side with ratio and medians, below a line about the machine; sizes have their units."""
    text = page.times(report(("bridge ADD", 1, 2), ("bridge DEL", 2, 200.4), ("VERSION", 0.61234, 1.25)))
    assert "3 rounds, Linux 6.1, 2 processors. The load was up to 2.0: trust the ratios" in text
    assert "| reference 1.9.1 | ADD | CHECK | DEL |" in text
    assert "| bridge | 0.50 (1 / 2) |  | 0.010 (2 / 200) |" in text
    assert "| VERSION | 0.49 (0.612 / 1.25) |  |  |" in text
    text = page.markdown(report(("ADD", 15360, 5120), group="memory_kib"))["costs"]
    assert "| ADD | 15 MiB | 5 MiB | 3.00 |" in text
    text = page.markdown(report(("all", 25.2e6, 12.6e6), group="size_bytes"))["costs"]
    assert "| all | 25.2 MB | 12.6 MB | 2.00 |" in text


def test_the_newest_reference_has_a_separate_table(tmp_path):
    """Its run replaces only its part of the page."""
    file = tmp_path / "performance.md"
    file.write_text("before <!-- newest -->\nold\n<!-- end of newest --> after")
    run = report(("bridge ADD", 1, 2))
    assert write(run, tmp_path, newest=True) == [file]
    assert file.read_text() == f"before <!-- newest -->\n\n{page.ratios(run)}\n\n<!-- end of newest --> after"


def test_tables_replace_the_previous_ones():
    """Text between the marks is replaced, other text stays, and missing marks are an error."""
    text = "# Page\n\n<!-- a -->\nold\n<!-- end of a -->\n\n<!-- b -->\n<!-- end of b -->\nend\n"
    parts = {"a": "| new |\n", "b": "B"}
    once = page.inserted(text, parts)
    assert once == (
        "# Page\n\n<!-- a -->\n\n| new |\n\n<!-- end of a -->\n\n<!-- b -->\n\nB\n\n<!-- end of b -->\nend\n"
    )
    assert page.inserted(once, parts) == once
    with pytest.raises(ValueError, match="in the document"):
        page.inserted("# Page\n", parts)


def test_nothing_is_written_when_one_part_fails(tmp_path):
    """A run without the plotted cases does not change the page."""
    file = tmp_path / "performance.md"
    before = "".join(f"<!-- {name} -->\n<!-- end of {name} -->" for name in page.markdown(report(("a", 1, 1))))
    file.write_text(before)
    with pytest.raises(ValueError, match="none of the plotted cases"):
        write(report(("something else", 1, 1)), tmp_path)
    assert file.read_text() == before
    assert write(report(("VERSION", 1, 2)), tmp_path) == [file, tmp_path / "bench.svg"]
    assert "| VERSION |" in file.read_text()


def test_page_and_plot_are_from_one_run():
    """The plot in docs/ shows the figures of the table on the page, and every plotted case is in the table."""
    (rows,) = (table for table in Document(DOCS / "performance.md").tables() if next(iter(table[0])) == HEAD)
    by_title = {row[HEAD]: row for row in rows}
    drawn = ElementTree.fromstring((DOCS / "bench.svg").read_text())
    figures_drawn = [element.text or "" for element in drawn.iter(f"{SVG}text") if element.attrib.get("class")]
    cells = [by_title[case]["ADD"] if case in by_title else by_title[case[:-4]][case[-3:]] for case in plot.PLOTTED]
    expected = [figure for cell in cells for figure in re.findall(r"[\d.]+", cell)[1:]]
    assert [text for text in figures_drawn if re.fullmatch(r"[\d.]+", text)] == expected


NODES, PODS = 20, 250


@pytest.fixture(scope="module")
def filled() -> dict[str, Any]:
    return fill_double(NODES, PODS)


def test_a_cluster_is_filled_with_few_requests_and_objects(filled):
    """Filling takes at most twelve requests a node; space, nodes and blocks are objects of a quarter of a kilobyte."""
    assert filled["pods"] == NODES * PODS
    assert filled["blocks"] == 5 * NODES
    assert cluster_page.count_requests(filled) <= MAX_REQUESTS * NODES / 5000
    assert filled["objects"] == 1 + NODES + filled["blocks"]
    assert 150 < filled["bytes"] / filled["objects"] < 350


def test_the_cost_of_a_change_is_measured():
    """A node that joins, and one that gets another block, take processor time."""
    assert cluster_joins.join_ms(3) > 0
    assert cluster_joins.entry_ms(30) > 0


def test_table_of_a_cluster_has_every_side():
    """A column has a side's percentiles and medians; the figures that no plugin changes follow the table."""
    burst = {"first_answer_s": [3.0, 1.0, 2.0], "calls_ms": {"ADD": 12.0, "DEL": 250.0}}
    agent = {"Rss": 30.4, "Pss": 25.0, "idle_share": 0.0021}
    report = {
        "about": {"sides": ["podwire", "other"], "kernel": "6.18.5", "cpus": 2, "load": 0.25},
        "bursts": {"podwire": {1: [burst]}, "other": {1: [burst, {**burst, "calls_ms": {"ADD": 14.0, "DEL": 1.0}}]}},
        "streams": {name: [(9.0, 20.0)] for name in ("podwire", "other", "direct", "vxlan")},
        "agent": [agent],
        "ready_s": 12.3,
    }
    assert kubernetes_page.markdown(report) == (
        "| | podwire | other |\n|---|---|---|\n"
        "| 1 pod: first answer, s | 2.00, 3.00 | 2.00, 3.00 |\n"
        "| 1 pod: ADD, DEL, ms | 12, 250 | 13, 126 |\n"
        "| same node: Gbit/s, µs | 9, 20 | 9, 20 |\n\n"
        "Between nodes: 9, 20 directly, 9, 20 by VXLAN. An agent: 30 MiB (PSS 25), 0.21% of a processor when idle. "
        "From `kubectl apply` until all nodes are ready: 12 s. Linux 6.18, 2 processors; load before: 0.2."
    )
