"""The first commands on a new node, with files as a release has them: selftest, a network of conf/, a pod, doctor.

One rule: the node needs only podwire's files and what a minimal Debian has: ip(8) is not part of that.
"""

import json
import re

from tests.support.binaries import ROOT
from tests.support.machine import BIN_DIR, CONF_DIR, Host

# The pods' interface with the rules of iptables, and with those of nftables.
_NETWORKS = ("10-podwire.conflist", "50-nftables.conflist")
_NO_MODULE = re.compile("modprobe|CONFIG_")  # a kernel without loadable modules lacks the option of its build
_TIMEOUT_S = 1500  # of a command on an emulated processor
_POD = "/run/netns/web"
_START_POD = f"mkdir -p /run/netns && touch {_POD} && unshare --net={_POD} true"
_STOP_POD = f"umount {_POD} && rm {_POD}"
_PATH = f"{BIN_DIR}:/usr/sbin:/usr/bin:/sbin:/bin"


def run_selftest(node: Host) -> None:
    """Runs the self-test, in which each network passes, or is skipped for want of a module."""
    done = node.done(f"{BIN_DIR}/podwire", "selftest", "--json", timeout_s=_TIMEOUT_S)
    document = json.loads(done.stdout)
    assert "networks" in document, document
    not_passed = [item for item in document["networks"] if item["outcome"] != "passed"]
    assert [item for item in not_passed if item["outcome"] == "failed" or not _NO_MODULE.search(item["reason"])] == []
    assert (done.returncode, document["changes"]) == (0, [])


def use_networks(node: Host) -> None:
    """Installs networks, attaches a pod to each, sends packets, detaches it; doctor reports only notes."""
    for sample in _NETWORKS:
        text = (ROOT / "conf" / sample).read_text()
        network = json.loads(text)["name"]
        node.write(CONF_DIR / sample, text)
        _podwire(node, "doctor")
        node.run("sh", "-ec", _START_POD)
        _podwire(node, "add", network, _POD)
        _podwire(node, "doctor")
        assert " 0 lost" in _podwire(node, "test")
        _podwire(node, "del", network, _POD)
        _podwire(node, "doctor")
        node.run("sh", "-ec", f"{_STOP_POD} && rm {CONF_DIR / sample}")


def _podwire(node: Host, *words: str) -> str:
    """Runs a command, which must exit with 0: doctor's status is 1 with a problem or warning, 4 if it is incomplete."""
    return node.run(f"{BIN_DIR}/podwire", *words, env={"PATH": _PATH}, timeout_s=_TIMEOUT_S)
