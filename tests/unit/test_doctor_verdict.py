"""Which commands of `podwire doctor --fix` are kept, by findings and packets before and after; the undo of others."""

import io

import pytest

from podwire.doctor import fixing, undo_parts
from podwire.doctor.finding import Check, Finding, Severity
from podwire.doctor.packets import TO_NODE, Packets, RuleKey, Sent
from podwire.doctor.shell_command import ShellCommand
from podwire.doctor.undo import CommandUndo
from podwire.doctor.verdict import FixTrial, FixVerdict
from podwire.output import Output
from process import signals
from tests.support import programs

RULES = Check("packet filter", "rules", "", lambda _node: (), ())
LINKS = Check("links", "bridges", "", lambda _node: (), ())
FINDING = Finding(
    Severity.PROBLEM, "rule-drops", "net", "rule 3 of chain c drops packets between pods: -j DROP", ShellCommand("x")
)
OTHER = Finding(Severity.PROBLEM, "bridge-down", "net", "it is down", ShellCommand("y"))
RULE = ("c", 7)


def sent(*, lost: int = 0, closed: Sent | None = None, rules: tuple[RuleKey, ...] = ()) -> Packets:
    """Returns packets of four paths, some of which are lost, and of a path that may be closed."""
    paths = {f"path {number}": Sent("gateway", number >= lost, is_meant=True) for number in range(4)}
    return Packets({**paths, **({"closed": closed} if closed else {})}, frozenset(rules))


def judge(
    before: Packets,
    after: Packets,
    *rest: Finding,
    check: Check = RULES,
    finding: Finding = FINDING,
    command: str = "x",
) -> FixVerdict:
    """Returns the verdict on a command for `finding`, with the findings that remain."""
    return FixTrial(check, finding, command, before, after, [(check, finding)], [(check, one) for one in rest]).judge()


def test_command_without_effect_is_undone():
    """A command is undone if the finding is still there, also with other words, unless fewer packets are lost."""
    again = Finding(
        Severity.PROBLEM, "rule-drops", "net", "rule 4 of chain c drops all packets: -j DROP", ShellCommand("z")
    )
    assert judge(sent(lost=2), sent(lost=2), again) == (False, "it did not help: the finding is still there")
    assert judge(sent(), sent(), again).is_kept is False
    assert judge(sent(lost=2), sent(lost=1), again).is_kept


def test_packets_that_are_still_lost():
    """A command is undone if nothing explains why its packets are still lost; a further problem explains it."""
    verdict = judge(sent(lost=2), sent(lost=2))
    assert verdict == (False, "it did not help: the finding is gone, but packets are lost: path 0, path 1")
    assert judge(sent(lost=2), sent(lost=2), OTHER).is_kept


def test_packets_that_a_command_stops():
    """A command after which packets are lost that arrived before is undone."""
    assert judge(sent(lost=1), sent(lost=2)) == (False, "it stopped path 1")


def closed(kind: str = "pod-to-pod", *, passes: bool = False, isolated: bool = False, by: str = "") -> Sent:
    """Returns a path that the configuration does not intend."""
    return Sent(kind, passes, is_meant=False, is_isolated=isolated, closed_by=((RULE, by),) if by else ())


def test_isolation_that_a_command_opens():
    """A command that opens a path between pods that the configuration isolates is undone, whatever the finding."""
    before = sent(closed=closed(isolated=True))
    for check in (RULES, LINKS):
        assert judge(before, sent(closed=closed(passes=True)), check=check) == (False, "it opened closed")
        assert judge(before, sent(closed=closed()), check=check).is_kept


def test_rule_that_a_command_jumps_over():
    """A command that opens a path before a rule is undone, unless the rule is the finding's, or is gone."""
    after = sent(closed=closed(passes=True), rules=(RULE,))
    assert judge(sent(closed=closed(by="7 of chain c")), after) == (False, "it opened closed")
    assert judge(sent(closed=closed(by="3 of chain c")), after).is_kept
    assert judge(sent(closed=closed(by="7 of chain c")), sent(closed=closed(passes=True))).is_kept


def test_port_of_the_node_that_a_command_opens():
    """An accept rule that opens ports that the firewall closes is undone; another command opens them as they were."""
    after = sent(closed=closed(TO_NODE, passes=True))
    by_firewall, otherwise = sent(closed=closed(TO_NODE, by="the policy of chain INPUT")), sent(closed=closed(TO_NODE))
    accept = "iptables -I INPUT -i cni0 -j ACCEPT"
    assert judge(by_firewall, after, command=accept) == (False, "it opened closed")
    assert judge(by_firewall, after, command="iptables -D INPUT -i cni0 -j DROP").is_kept
    assert judge(otherwise, after, command="nft insert rule arp t c accept").is_kept
    assert judge(otherwise, after, check=LINKS, command="ip link set cni0 up").is_kept


def test_the_end_of_the_input_ends_the_line(monkeypatch):
    """At the end of the input no command is run, and the line of the question ends."""
    monkeypatch.setattr(signals, "block", lambda: None)
    stream, findings = io.StringIO(), [(LINKS, OTHER)]
    kept = fixing.fix(lambda: findings, lambda _finding: Packets({}), Output(stream), io.StringIO(), {})
    assert kept == findings
    assert stream.getvalue().endswith("[q]uit: \n")


NFT = "table inet t {{ # handle 1\n\tchain c {{ # handle 1\n{}\t\tip saddr 10.1.1.1 drop # handle 2\n\t}}\n}}"
PERMANENT = '{"mac": "02:00:00:00:00:66", "flags": ["self"], "state": "permanent"}'
STATIC = '{"mac": "02:00:00:00:00:66", "flags": [], "master": "cni0", "state": "static"}'


@pytest.mark.parametrize(
    ("command", "before", "after", "undo"),
    [
        (
            "nft insert rule inet t c handle 2 iifname cni0 accept",
            NFT.format(""),
            NFT.format('\t\tiifname "cni0" accept # handle 3\n'),
            "nft delete rule inet t c handle 3",
        ),
        (
            "bridge fdb del 02:00:00:00:00:66 dev veth0 master",
            f"[{PERMANENT}, {STATIC}]",
            f"[{PERMANENT}]",
            "bridge fdb replace 02:00:00:00:00:66 dev veth0 master static",
        ),
    ],
)
@pytest.mark.every_case
def test_command_is_undone(tmp_path, monkeypatch, command, before, after, undo):
    """The undo restores what the command changed: of a MAC address only the entry of the bridge."""
    state = tmp_path / "state"
    programs.install(tmp_path, **{command.split()[0]: f"cat {state}"})
    monkeypatch.setattr(undo_parts, "find_program", lambda name: str(tmp_path / name))
    state.write_text(before)
    planned = CommandUndo(command)
    state.write_text(after)
    assert (planned.is_complete, planned.compute()) == (True, [undo])


def test_unknown_command_has_no_undo():
    """For a command of podwire itself, an unknown one, and commands that another operator joins there is no undo."""
    for command in ("podwire repair net", "kill 1", "ip route flush table 7", "modprobe veth; kill 1", "systemctl x"):
        undo = CommandUndo(command)
        assert not undo.is_complete
        assert undo.compute() == []
