"""Reading and changing rules with the restore programs (kernel.netfilter.iptables), with scripts as programs."""

import fcntl
import os
import signal
import subprocess
from contextlib import ExitStack

import pytest

from cni.errors import CniError
from kernel import locks, system
from kernel.netfilter import iptables, iptables_program
from kernel.netfilter.iptables_program import LineSyntaxError, RefusedError, UnusableError
from kernel.netfilter.iptables_rule import ChainList, IptablesChange, IptablesRule
from tests.support.errors import error_of
from tests.support.machine import eventually

PROGRAM = """#!/bin/sh
here=${0%/*}
echo "$LC_ALL $*" >> "$0.calls"
cat > "$0.stdin"
[ -e "$here/listing" ] && cat "$here/listing"
echo "  it
said" >&2
set -- $(cat "$0.exits")
echo "$2 $3 $4 $5" > "$0.exits"
exit ${1:-0}
"""


class Programs:
    """iptables-restore and ip6tables-restore in one directory; they exit with `exits`, then with 0."""

    def __init__(self, directory):
        self.directory = directory
        directory.mkdir()

    def file(self, family, suffix=""):
        return self.directory / ({4: "iptables-restore", 6: "ip6tables-restore"}[family] + suffix)

    def install(self, family=4, *exits, script=PROGRAM):
        program = self.file(family)
        program.write_text(script)
        program.chmod(0o755)
        self.file(family, ".exits").write_text(" ".join(map(str, exits)))
        return program

    def install_legacy(self, script):
        program = self.directory / "iptables-legacy-restore"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    def lists(self, text):
        (self.directory / "listing").write_text(text)

    def calls(self, family=4):
        file = self.file(family, ".calls")
        return file.read_text().splitlines() if file.exists() else []

    def stdin(self, family=4):
        return self.file(family, ".stdin").read_text()


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The programs' directory, on PATH; the host's programs are not used."""
    monkeypatch.setenv("PATH", f"relative::{tmp_path}/absent:{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(system, "PROGRAM_DIRECTORIES", (f"{tmp_path}/bin",))
    return Programs(tmp_path / "bin")


ACCEPT = IptablesChange.append(IptablesRule("INPUT", "-j ACCEPT"))
NEW_CHAINS = {4: [IptablesChange.new_chain("a")], 6: [IptablesChange.new_chain("a")]}


def apply(changes=(ACCEPT,)):
    iptables.apply({4: changes}, "nat", "do it")


def test_chains_are_read_by_one_process(programs):
    """One document lists all chains, in the C locale, with a limit for waiting for the lock."""
    programs.install()
    programs.lists("-P POSTROUTING ACCEPT\n-N CNI-x\n")
    listings = iptables.read([4], "nat", ["POSTROUTING", "CNI-x"])
    assert programs.calls() == ["C --noflush --wait 10"]
    assert programs.stdin() == "*nat\n-S POSTROUTING\n-S CNI-x\nCOMMIT\n"
    assert listings == {4: ChainList.of(["POSTROUTING", "CNI-x"])}


def test_invalid_utf8_is_preserved(programs):
    """A rule with a comment that is not UTF-8 is passed to the program byte by byte."""
    program = programs.install()
    (programs.directory / "listing").write_bytes(
        b'-P POSTROUTING ACCEPT\n-A POSTROUTING -m comment --comment "\xff\xc3" -j x\n'
    )
    (rule,) = iptables.read([4], "nat", ["POSTROUTING"])[4].rules("POSTROUTING")
    apply([IptablesChange.append(rule)])
    assert b'--comment "\xff\xc3" -j x\n' in program.with_suffix(".stdin").read_bytes()


def test_a_missing_chain_is_not_listed(programs):
    """Exit status 1 after the listing of a built-in chain means that the next chain is missing."""
    programs.install(4, 1)
    programs.lists("-P POSTROUTING ACCEPT\n")
    assert iptables.read([4], "nat", ["POSTROUTING", "CNI-x"]) == {4: ChainList.of(["POSTROUTING"])}


def test_the_whole_table_is_listed(programs):
    """Without chains the whole table is listed; a program that lists none is broken, and its table is not empty."""
    program = programs.install()
    programs.lists("-P INPUT ACCEPT\n-N CNI-x\n")
    assert iptables.list_chains({4: []}, "nat") == {4: ChainList.of(["INPUT", "CNI-x"])}
    assert "CNI-x" in iptables.list_chains({4: ["CNI-x"]}, "nat")[4].chains
    programs.lists("")
    assert error_of(lambda: iptables.list_chains({4: []}, "nat"), UnusableError).msg.startswith(program.name)


def test_changes_are_one_document_for_each_family(programs):
    """Each family's lines are passed to its program, and a family without lines needs no program."""
    programs.install(4)
    programs.install(6)
    iptables.apply(
        {4: [IptablesChange.new_chain("a"), IptablesChange.new_chain("b")], 6: [IptablesChange.delete_chain("c")]},
        "nat",
        "do it",
    )
    assert (programs.stdin(4), programs.stdin(6)) == ("*nat\n-N a\n-N b\nCOMMIT\n", "*nat\n-X c\nCOMMIT\n")
    iptables.apply({4: [], 6: [IptablesChange.delete_chain("c")]}, "nat", "do it")
    assert (len(programs.calls(4)), len(programs.calls(6))) == (1, 2)


@pytest.mark.parametrize(
    ("status", "kind"), [(1, RefusedError), (2, LineSyntaxError), (3, UnusableError), (5, CniError)]
)
def test_a_failure_has_the_programs_stderr(programs, status, kind):
    """The message has program, description and exit status; the details have stderr in one line."""
    programs.install(4, status)
    error = error_of(apply, CniError)
    assert type(error) is kind
    assert str(status) in error.msg
    assert "iptables-restore" in error.msg
    assert (error.code, error.details) == (999, "it said")


def test_a_killed_program_has_failed(programs):
    """A program that a signal ended is a failure, whose message names the signal."""
    programs.install(script="#!/bin/sh\nkill -9 $$\n")
    assert "signal 9" in error_of(apply, CniError).msg


def test_only_the_family_with_a_conflict_is_retried(programs):
    """After exit status 4, which iptables-nft returns if another program commits, that family's lines are repeated."""
    programs.install(4)
    programs.install(6, 4, 4)
    iptables.apply(NEW_CHAINS, "nat", "do it")
    assert (len(programs.calls(4)), len(programs.calls(6))) == (1, 3)


def test_a_permanent_conflict_is_an_error(programs):
    """After ten tries the error has the program's stderr."""
    programs.install(script="#!/bin/sh\necho >> $0.calls\necho busy >&2\nexit 4\n")
    error = error_of(apply, CniError)
    assert (error.code, error.details, len(programs.calls())) == (999, "busy", 10)
    assert "exit status 4" in error.msg


@pytest.mark.parametrize(("variable", "lock"), [(None, "/run/xtables.lock"), ("/x/lock", "/x/lock")])
def test_a_lock_that_stays_locked_is_code_11(programs, monkeypatch, variable, lock):
    """If the program could not lock within its time, the code is 11, and the details name the lock's file."""
    if variable:
        monkeypatch.setenv("XTABLES_LOCKFILE", variable)
    else:
        monkeypatch.delenv("XTABLES_LOCKFILE", raising=False)
    monkeypatch.setattr(iptables_program, "LOCK_WAIT_S", 1)
    programs.install(4, 4, 4)
    error = error_of(apply, CniError)
    assert (error.code, len(programs.calls())) == (11, 1)
    assert "try again later" in error.msg
    assert error.details.endswith(f" {lock}")


def test_a_conflict_of_iptables_nft_names_no_lock(programs, monkeypatch):
    """Iptables-nft has no lock: after a permanent conflict the details say what changes the rules."""
    monkeypatch.setattr(iptables_program, "LOCK_WAIT_S", 1)
    monkeypatch.setattr(iptables_program, "is_nft", lambda program: True)
    programs.install(4, 4, 4)
    error = error_of(apply, CniError)
    assert error.code == 11
    assert error.details == (
        "iptables-nft has no lock: another program changes rules all the time; nft monitor shows the changes"
    )


LONG_RUN = "with thousands of rules that takes long"


@pytest.mark.parametrize("is_nft", [True, False])
@pytest.mark.parametrize("holder", ["none", "another process", "the program"])
def test_notice_of_a_long_run(monkeypatch, capfd, tmp_path, is_nft, holder):
    """The holder of the lock is named only if the program uses the lock and another process holds it."""
    lock = tmp_path / "lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    monkeypatch.setattr(iptables_program, "is_nft", lambda program: is_nft)
    with ExitStack() as stack:
        if holder == "another process":
            fcntl.flock(stack.enter_context(lock.open("w")), fcntl.LOCK_EX)
        elif holder == "the program":
            program = subprocess.Popen(["flock", lock, "sleep", "60"], process_group=0)
            stack.callback(program.wait)
            stack.callback(program.kill)
            stack.callback(os.killpg, program.pid, signal.SIGKILL)
            assert eventually(lambda: lock.exists() and bool(locks.get_holders(os.stat(lock))), within_s=60)
        iptables_program._report_long_run(["/sbin/iptables-restore"])
    printed = capfd.readouterr().err
    assert printed.startswith("podwire: ")
    assert (f"the lock {lock} is held by" in printed) == (holder == "another process" and not is_nft)
    assert (LONG_RUN in printed) == (f"the lock {lock}" not in printed)


def test_a_missing_program_makes_a_family_unusable(programs):
    """The error names the program and the searched directories, and no program is run for the other family."""
    programs.install(4)
    error = error_of(lambda: iptables.apply(NEW_CHAINS, "nat", "do it"), UnusableError)
    assert error.msg == "ip6tables-restore is not installed"
    assert str(programs.directory) in error.details
    assert programs.calls(4) == []


def test_a_program_that_cannot_be_run_makes_a_family_unusable(programs):
    """The error for a file that is not a program has the kernel's reason."""
    programs.install().write_bytes(b"\x7fELF")
    assert "cannot run iptables-restore: Exec format error" in error_of(apply, UnusableError).msg


@pytest.mark.parametrize("path", [None, "", "relative:."])
def test_without_a_path_the_usual_directories_are_searched(programs, monkeypatch, path, tmp_path):
    """Without PATH the program is found in the usual directories, and never in the working directory."""
    program = programs.install()
    monkeypatch.chdir(tmp_path)
    (tmp_path / program.name).write_text("#!/bin/sh\nexit 2\n")
    (tmp_path / program.name).chmod(0o755)
    program.write_text("#!/bin/sh\n: > ${0%/*}/ran\n")
    monkeypatch.delenv("PATH") if path is None else monkeypatch.setenv("PATH", path)
    apply()
    assert (programs.directory / "ran").exists()


INVALID_LISTINGS = [
    *((text, f"exit {n}") for text in ("", "rubbish\n", "-N POSTROUTING\n", "-P POSTROUTIN") for n in (0, 1)),
    *(("-P POSTROUTING ACCEPT\n", end) for end in ("exit 2", "exit 3", "kill -9 $$")),
]


@pytest.mark.parametrize(("listing", "end"), INVALID_LISTINGS)
def test_an_invalid_listing_makes_a_family_unusable(programs, listing, end):
    """A listing without the policy of a built-in chain, or of a program that failed or was killed, is not used."""
    programs.install(script=f"#!/bin/sh\necho no >&2\nprintf -- '{listing}'\n{end}\n")
    assert error_of(lambda: iptables.read([4], "nat", ["POSTROUTING"]), UnusableError).details == "no"


def test_legacy_tables_without_a_program_are_reported(programs, tmp_path, monkeypatch, capfd):
    """If iptables-legacy created a table and its program is not installed, stderr names the missing program."""
    names = tmp_path / "names"
    names.write_text("nat\n")
    monkeypatch.setattr(iptables, "_LEGACY_TABLES", {4: str(names), 6: str(tmp_path / "absent")})
    assert iptables.get_legacy_families("nat") == []
    assert "may remain: not installed: iptables-legacy-restore; install iptables" in capfd.readouterr().err
    programs.install()
    assert iptables.get_legacy_families("nat") == [4]


@pytest.mark.parametrize("host", ["xtables-nft-multi", "xtables-legacy-multi", "wrapper", ""])
def test_legacy_tables_are_read_by_the_program_of_that_variant(programs, host):
    """If the host's program is iptables-nft's or missing, the one with "legacy" in its name is run."""
    if host:
        programs.install().rename(programs.directory / host)
        (programs.directory / "iptables-restore").symlink_to(host)
    other = programs.install_legacy("echo '-P POSTROUTING ACCEPT'")
    expected = other if host in ("xtables-nft-multi", "") else programs.directory / "iptables-restore"
    assert iptables_program.find(4, legacy=True) == str(expected)
    if expected == other:
        assert iptables.read([4], "nat", ["POSTROUTING"], legacy=True) == {4: ChainList.of(["POSTROUTING"])}


def test_a_failure_names_the_program_of_that_variant(programs):
    """The error of iptables-legacy names its program."""
    programs.install_legacy("exit 3")
    error = error_of(lambda: iptables.read([4], "nat", ["POSTROUTING"], legacy=True), UnusableError)
    assert error.msg == "iptables-legacy-restore cannot be used: exit status 3"


def test_an_unreadable_list_of_legacy_tables(programs, tmp_path, monkeypatch):
    """If the kernel's list is unreadable, tables may exist unless the host's program is iptables-nft's."""

    def denied(path, flags):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("kernel.netfilter.iptables.os.open", denied)
    assert not iptables.has_legacy(4, "nat")
    program = programs.install()
    assert iptables.has_legacy(4, "nat")
    program.rename(programs.directory / "xtables-nft-multi")
    program.symlink_to("xtables-nft-multi")
    assert not iptables.has_legacy(4, "nat")
