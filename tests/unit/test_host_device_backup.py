"""host-device's files: an invalid one is no state, and one that cannot be read now is an error."""

import errno
import json
import os
from unittest.mock import Mock

import pytest

from cni.conf import Attachment
from cni.errors import CniError, Code
from kernel import device
from kernel.device import Device
from kernel.link import Link
from plugins.host_device import restoration
from plugins.host_device.backup import BackupStore
from process import files
from process.values import replace

ATTACHMENT = Attachment("c", "eth0")
ADDRESS = {"local": "192.0.2.1", "prefix": 24, "scope": 0, "flags": 0, "peer": "", "broadcast": ""}
STATE = {"network": "net", "containerID": "c", "ifname": "eth0", "life": "boot 1", "name": "hd0"}


@pytest.fixture
def load(tmp_path):
    """A function that stores a state with an address and loads it."""

    def run(**keys):
        content = {**STATE, "addresses": [{**ADDRESS, **keys}]}
        (tmp_path / "c:eth0.json").write_text(json.dumps(content))
        return BackupStore(str(tmp_path)).load(ATTACHMENT)

    return run


def test_valid_state(load):
    """A valid state is loaded."""
    assert load().addresses[0].local == "192.0.2.1"
    assert load().flags is None  # not 0: DEL leaves the flags as they are


@pytest.mark.parametrize("keys", [{"local": ""}, {"local": "x"}, {"peer": "1.2.3"}, {"prefix": 129}, {"scope": 256}])
def test_invalid_address(load, keys):
    """A file with an invalid address is no state."""
    assert load(**keys) is None


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOMEM])
def test_unreadable_file(load, monkeypatch, code):
    """A file that cannot be read now is an error, so that DEL can be repeated and nothing is forgotten."""

    def fail(path, size):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "read", fail)
    with pytest.raises(CniError) as caught:
        load()
    assert caught.value.code == Code.IO_FAILURE


def test_device_with_another_name_on_the_host(load):
    """DEL finds a virtual device that was renamed on the host, by its index and MAC address."""
    link = Link(7, "lab0", "02:00:00:00:00:d0", 1500, 0, "dummy", 0, 0, None, 0)
    saved = replace(load(), kind="dummy", index=7, mac=link.mac)
    assert restoration.find_on_host([Device(link, "")], saved) == Device(link, "")
    assert restoration.find_on_host([Device(link._replace(index=8), "")], saved) is None


def test_device_with_another_index_in_the_container(load, monkeypatch):
    """DEL finds a physical device by its permanent MAC address if another device has its index by now."""
    link = Link(7, "eth0", "02:00:00:00:00:d0", 1500, 0, "", 0, 0, None, 0)
    other, moved = Device(link, "02:00:00:00:00:d1"), Device(link._replace(index=8, name="eth1"), link.mac)
    saved = replace(load(), container_index=7, permanent_mac=moved.permanent_mac)
    monkeypatch.setattr(device, "list_all", lambda _: [other, moved])
    monkeypatch.setattr(restoration, "get_life", lambda *_: saved.life)
    assert restoration.find_in_sandbox(Mock(), saved) == moved
