"""Attachments that `podwire repair` does not try."""

import json

from cni.errors import CniError, Code
from podwire import attachments
from podwire.repairing import FAILED, UNTRIED, Outcome, Part, Repairer


def test_after_a_lock_timeout_no_attachment_is_tried(tmp_path, monkeypatch):
    """After a timeout on the packet filter's lock the other attachments are not tried."""
    (tmp_path / "results").mkdir()
    for number in range(3):
        names = {"networkName": "net", "containerId": f"c{number}", "ifName": "eth0"}
        (tmp_path / "results" / f"net-c{number}-eth0").write_text(json.dumps(names))
    busy = Part("portmap", error=CniError(Code.TRY_AGAIN_LATER, "the lock is held"))
    monkeypatch.setattr(Repairer, "_one", lambda self, known, identity: Outcome(known, FAILED, (busy,)))
    outcomes = Repairer({}, (), {}).repair(attachments.list_cached(str(tmp_path)))
    assert [outcome.state for outcome in outcomes] == [FAILED, UNTRIED, UNTRIED]
