"""The undo of doctor's commands, from what the host's programs print before and after them."""

import pytest

from podwire.doctor import undo_parts
from podwire.doctor.undo import Undo
from tests.support import programs

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
    planned = Undo(command)
    state.write_text(after)
    assert (planned.is_complete, planned.compute()) == (True, [undo])


def test_unknown_command_has_no_undo():
    """For a command of podwire itself, an unknown one, and commands that another operator joins there is no undo."""
    for command in ("podwire repair net", "kill 1", "ip route flush table 7", "modprobe veth; kill 1", "systemctl x"):
        undo = Undo(command)
        assert not undo.is_complete
        assert undo.compute() == []
