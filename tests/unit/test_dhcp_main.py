"""dhcp's configuration, its ADD with a daemon that does not answer, and the timers of its daemon."""

import json
from functools import partial

import pytest

from cni import args as cni_args
from cni import conf as cni_conf
from cni.errors import CniError
from ipam.dhcp import conf as dhcp_conf
from ipam.dhcp import main
from ipam.dhcp.rpc import ALLOCATE, RELEASE
from process.loop import Loop, now
from tests.support.dhcp import answering_calls


@pytest.mark.parametrize(
    ("error", "code", "methods"), [("", 11, [ALLOCATE, RELEASE]), ("no more tries", 999, [ALLOCATE])]
)
def test_add_without_an_answer_is_released(tmp_path, monkeypatch, error, code, methods):
    """An ADD that the daemon does not answer in time is followed by a release; one that it refuses is not."""
    monkeypatch.setattr(main, "_ALLOCATE_LIMIT_S", 60 if error else 0.3)

    def answer(server, call):
        if call.method == RELEASE:
            return server.reply(call, None)
        return server.refuse(call, error) if error else b""

    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/x", "CNI_PATH": "/"}
    ipam = {"type": "dhcp", "daemonSocketPath": str(tmp_path / "dhcp.sock"), "dataDir": str(tmp_path)}
    conf = cni_conf.parse(json.dumps({"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "ipam": ipam}).encode())
    with answering_calls(tmp_path / "dhcp.sock", answer) as calls, pytest.raises(CniError) as failure:
        main.cmd_add(cni_args.from_env(env), conf)
    assert (failure.value.code, [call.method for call in calls]) == (code, methods)


@pytest.mark.parametrize("number", ["50", "52", "53", "54"])
def test_provided_option_of_the_protocol(number):
    """Options that each message of the client depends on cannot be replaced."""
    stdin = {"name": "net", "ipam": {"type": "dhcp", "provide": [{"option": number, "value": "x"}]}}
    with pytest.raises(CniError, match="cannot be provided") as caught:
        dhcp_conf.parse(cni_conf.parse(json.dumps(stdin).encode()), "")
    assert caught.value.code == 7


def test_cancelled_timers_are_removed():
    """Timers of deleted pods, which would end in days, do not stay in memory; the others stay, in their order."""
    loop = Loop()
    ran: list[int] = []
    for number in reversed(range(300)):
        loop.call_at(float(number), partial(ran.append, number))
        for _ in range(30):
            loop.call_at(now() + 86400, lambda: None).cancel()
    assert len(loop._timers) < 1000
    loop._run_timers()
    assert ran == list(range(300))
