"""The identity of a node: its ID, its machine, and what refuses a second one."""

import json
from ipaddress import ip_address
from pathlib import Path

import pytest

from agent.pools import identity
from cni.errors import CniError, Code
from process import files

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_the_id_stays(tmp_path):
    """The first start makes an ID of 128 random bits; the next ones read it."""
    first = identity.read(str(tmp_path / "state"), "m1")
    assert (len(first.node), first.machine, first.boot, first.is_new) == (32, "m1", BOOT, True)
    assert identity.read(str(tmp_path / "state"), "m1") == first._replace(is_new=False)
    assert identity.read(str(tmp_path / "other"), "m1").node != first.node
    assert first.instance("uid") == f"{BOOT}/uid"


def test_another_machine_is_refused(tmp_path):
    """The file of a copied disk names the other machine, both values, and what to do."""
    node = identity.read(str(tmp_path), "m1").node
    with pytest.raises(CniError) as caught:
        identity.read(str(tmp_path), "m2")
    assert f"node {node} is m1, and this machine is m2" in caught.value.msg
    assert "delete the file and reboot" in caught.value.details


@pytest.mark.parametrize("text", ["", "x", "[]", '{"node": "short", "machine": "m1"}', '{"machine": "m1"}', "{" * 5000])
def test_a_damaged_id_is_not_replaced(tmp_path, text):
    """A damaged file is an error: a new ID would lose the node's blocks."""
    (tmp_path / "node-id").write_text(text)
    with pytest.raises(CniError) as caught:
        identity.read(str(tmp_path), "m1")
    assert (caught.value.code, "damaged" in caught.value.msg) == (Code.IO_FAILURE, True)
    assert (tmp_path / "node-id").read_text() == text


def test_the_machine_is_what_the_firmware_says(tmp_path):
    """The product UUID, else the serial number of the device tree; values that many machines have do not count."""
    uuid, serial = tmp_path / "uuid", tmp_path / "serial"
    paths = (str(uuid), str(serial))
    for text in (None, "00000000-0000-0000-0000-000000000000\n", "03000200-0400-0500-0006-000700080009", "unknown"):
        if text is not None:
            uuid.write_text(text)
        with pytest.raises(CniError, match="nothing identifies this machine"):
            identity.read(str(tmp_path / "state"), machine_files=paths)
    serial.write_bytes(b"10000000a1b2c3d4\0")
    assert identity.read(str(tmp_path / "state"), machine_files=paths).machine == "10000000a1b2c3d4"
    uuid.write_text("4C4C4544-0000-1000-8000-0123456789AB\n")
    with pytest.raises(CniError, match="is of another machine"):
        identity.read(str(tmp_path / "state"), machine_files=paths)


@pytest.mark.every_case
@pytest.mark.parametrize("path", ["/sys/class/dmi/id/product_uuid", "/sys/firmware/devicetree/base/serial-number"])
def test_the_kernel_shows_what_the_firmware_says(tmp_path, monkeypatch, path):
    """Without an option, PCs and boards with a device tree are identified by the files that the kernel has for them."""
    read, shown = files.read, {path: b"10000000a1b2c3d4\0"}
    monkeypatch.setattr(files, "read", lambda name, limit: shown.get(name) or read(f"{tmp_path}/{name[-7:]}", limit))
    assert identity.read(str(tmp_path)).machine == "10000000a1b2c3d4"


def read_by_address(directory, mac="52:54:00:00:00:01", address="192.0.2.10", files=()):
    return identity.read(str(directory), "", ip_address(address), files, lambda _: mac).machine


def test_a_machine_without_a_product_uuid_is_its_hardware_at_its_address(tmp_path):
    """Without a product UUID the address and the hardware's MAC address count; if either differs, it is another one."""
    assert read_by_address(tmp_path) == "52:54:00:00:00:01@192.0.2.10"
    for other in ({"mac": "52:54:00:00:00:02"}, {"address": "192.0.2.11"}):
        with pytest.raises(CniError, match="is of another machine"):
            read_by_address(tmp_path, **other)
    with pytest.raises(CniError, match=r"no link with a permanent MAC address has 192\.0\.2\.10"):
        read_by_address(tmp_path, mac="")


def test_a_virtual_link_identifies_no_machine():
    """The permanent MAC address is the hardware's: loopback has none, nor has an address that no link has."""
    assert identity.get_permanent_mac(ip_address("127.0.0.1")) == ""
    assert identity.get_permanent_mac(ip_address("203.0.113.77")) == ""


def test_the_product_uuid_comes_before_the_address(tmp_path):
    """A machine with a product UUID does not become another one when its address changes."""
    (tmp_path / "uuid").write_text("4c4c4544-0000-1000-8000-0123456789ab\n")
    for address in ("192.0.2.10", "192.0.2.11"):
        machine = read_by_address(tmp_path / "state", address=address, files=[str(tmp_path / "uuid")])
        assert machine == "4c4c4544-0000-1000-8000-0123456789ab"


def test_a_second_agent_is_refused(tmp_path):
    """Two agents share neither the directory of the ID nor that of the grants."""
    one, shared, other = (str(tmp_path / name) for name in ("one", "shared", "other"))
    with identity.locked([one, shared]):
        with (
            pytest.raises(CniError, match="another podwire-agent maintains this node"),
            identity.locked([other, shared]),
        ):
            raise AssertionError
        with identity.locked([other]):
            pass
    with identity.locked([shared]):
        pass


def test_the_file_is_whole(tmp_path):
    """The file has its content before its name, and readers need no root."""
    identity.read(str(tmp_path), "m1")
    assert [path.name for path in tmp_path.iterdir()] == ["node-id"]
    assert json.loads((tmp_path / "node-id").read_text())["machine"] == "m1"
