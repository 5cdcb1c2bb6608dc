"""tap: the device's properties in every combination of keys, its bridge, and programs that open it: frames, queues."""

import contextlib
import fcntl
import ipaddress
import itertools
import os
import select
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether

from tests.support.attaching import DEBUG_LOG, list_steps
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.netstate import links, shown, state
from tests.support.processes import output

MAC = "02:00:00:00:00:77"
NAMES = {0: "root"}  # `ip` prints names
COMBINATIONS = list(itertools.product((False, True), (None, 0, 31000), (None, 0, 4294967294)))
PROGRAM_MAC, PROGRAM_IP = "02:00:00:00:00:99", "10.27.0.99"
TAP, MULTI_QUEUE, NO_PI, VNET_HDR = 0x2, 0x100, 0x1000, 0x4000  # IFF_*, linux/if_tun.h
TUNSETIFF = 0x400454CA
BROADCAST = "ff:ff:ff:ff:ff:ff"
DEADLINE_S, AGAIN_S = 30.0, 0.2


def properties(pod) -> dict[str, Any]:
    """Returns what `ip -d link` shows of the device."""
    data: dict[str, Any] = shown(pod, "eth0")["linkinfo"]["info_data"]
    return data


@pytest.mark.parametrize("layer", [2, 3])
@pytest.mark.parametrize(("multi_queue", "owner", "group"), COMBINATIONS)
def test_every_combination_has_the_same_device(tap, sandbox, multi_queue, owner, group, layer):
    """Owner, group and queues are set alone and together, with MTU and MAC address; pi and vnet_hdr are off."""
    net = tap.having(multiQueue=multi_queue, owner=owner, group=group, mtu=1300, mac=MAC)
    net = net if layer == 3 else net.having(ipam=None)
    result = net.add(sandbox)
    data = properties(sandbox)
    ids = {"user": owner, "group": group}
    assert {key: data[key] for key in ("type", "pi", "vnet_hdr", "multi_queue", "persist")} == {
        "type": "tap",
        "pi": False,
        "vnet_hdr": False,
        "multi_queue": multi_queue,
        "persist": True,
    }
    assert {key: str(data[key]) for key in ids if key in data} == {
        key: NAMES.get(number, str(number)) for key, number in ids.items() if number is not None
    }
    link = shown(sandbox, "eth0")
    assert (link["mtu"], link["address"], "UP" in link["flags"]) == (1300, MAC, True)
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}


def test_ipv6_addresses_do_not_wait_for_a_program(tap, sandbox):
    """ADD with IPv6 addresses does not wait for duplicate address detection, which needs a carrier."""
    net = tap.having(ipam={**tap.config["ipam"], "subnet": None, "ranges": [[{"subnet": "fd00:27::/64"}]]})
    outcome = net.run("ADD", sandbox, env=DEBUG_LOG)
    result = outcome.result()
    assert list_steps(outcome)[-1] == "add addresses and routes"  # and not a wait for the IPv6 addresses
    assert "tentative" in sandbox.ip("-6", "address", "show", "dev", "eth0", "scope", "global")
    net.check(sandbox, result)


def test_bridge_of_the_container(tap, sandbox):
    """The device becomes a port of a bridge in the container; CHECK notices when it is none."""
    sandbox.ip("link", "add", "br0", "type", "bridge")
    net = tap.having(bridge="br0", mtu=1400, mac=MAC)
    result = net.add(sandbox)
    link = shown(sandbox, "eth0")
    assert (link["master"], link["mtu"], link["address"]) == ("br0", 1400, MAC)
    net.check(sandbox, result)
    sandbox.ip("link", "set", "eth0", "nomaster")
    assert net.run("CHECK", sandbox, prev_result=result).error()["msg"] == 'Tap eth0 is not a port of bridge "br0"'
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo", "br0"}


def test_refused_port_leaves_nothing(tap, sandbox):
    """If the bridge is full, ADD deletes the device, and IPAM is not called."""
    lines = ["link add name br0 address 02:00:00:00:00:01 type bridge"]
    for number in range(512):  # the bridge has no port for the last end of a veth
        lines.append(f"link add name a{number} type veth peer name b{number}")
        lines += [f"link set {end}{number} master br0" for end in "ab"]
    output("ip", "-n", sandbox.name, "-force", "-batch", "-", stdin="\n".join(lines), check=False)
    before = sandbox.ip("-brief", "link")
    error = tap.having(bridge="br0", mac=MAC, owner=0).run("ADD", sandbox).error()
    assert error["details"].endswith("the bridge is full: the kernel allows 1023 ports")
    assert sandbox.ip("-brief", "link") == before
    assert tap.leases() == {}


def test_missing_device_file(tap, sandbox):
    """Without /dev/net/tun ADD and STATUS report how to create it, and nothing changes."""
    net = tap.having(cniVersion="1.1.0")
    before = state(sandbox)
    for command, code in (("ADD", 999), ("STATUS", 50)):
        error = net.run_after("mount -t tmpfs none /dev/net", command, sandbox).error()
        assert (error["code"], error["msg"]) == (code, "failed to open /dev/net/tun: no such file or directory")
        assert error["details"] == "the device file is missing: mkdir -p /dev/net && mknod /dev/net/tun c 10 200"
    assert state(sandbox) == before
    assert net.leases() == {}


@pytest.mark.parametrize(
    ("keys", "arguments"),
    [
        ({}, []),
        ({"multiQueue": True}, ["multi_queue"]),
        ({"owner": 0, "group": 0}, ["user", "0", "group", "0", "vnet_hdr"]),
    ],
)
def test_device_of_the_reference_plugin(tap, sandbox, keys, arguments):
    """A device made as the reference plugin makes it, with `ip tuntap` or virtio headers, passes CHECK and DEL."""
    net = tap.having(ipam=None, **keys)
    sandbox.ip("tuntap", "add", "mode", "tap", "name", "veth01234567", *arguments)
    sandbox.ip("link", "set", "veth01234567", "name", "eth0")
    sandbox.ip("link", "set", "eth0", "up")
    interface = {"name": "eth0", "mac": shown(sandbox, "eth0")["address"], "sandbox": sandbox.path}
    result = {"cniVersion": "1.0.0", "interfaces": [interface]}
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}


def attach(pod: Namespace, name: str = "eth0", flags: int = TAP | NO_PI) -> int:
    """Opens an existing tap device, as QEMU does, and returns the descriptor; raises OSError."""
    with pod.entered():
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Program:
    """A program with an open tap device."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, frame: bytes) -> None:
        """Writes one frame: the interface in the pod receives it."""
        os.write(self._descriptor, frame)

    def read_until(self, matches: Callable[[bytes], bool]) -> bytes:
        """Returns the first frame from the pod that `matches`; without one in 30 s the test fails."""
        frame = self._read(matches, DEADLINE_S)
        assert frame, "no such frame was sent by the pod"
        return frame

    def ask(self, question: bytes, matches: Callable[[bytes], bool], *, other: Self | None = None) -> bytes:
        """Writes a frame until this program, or `other`, reads one that `matches`; without one in 30 s the test fails.

        The first frames can be lost: the kernel activates the interface shortly after a program has opened the device.
        """
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self.write(question)
            if frame := (other or self)._read(matches, AGAIN_S):
                return frame
        raise AssertionError("no such frame was sent by the pod")

    def _read(self, matches: Callable[[bytes], bool], within_s: float) -> bytes:
        deadline = time.monotonic() + within_s
        while (remaining := deadline - time.monotonic()) > 0:
            if select.select([self._descriptor], [], [], remaining)[0]:
                frame = os.read(self._descriptor, 65536)
                if matches(frame):
                    return frame
        return b""

    def resolve(self, ip: str) -> str:
        """Returns the MAC address with which the pod answers an ARP request for `ip`."""
        question = Ether(src=PROGRAM_MAC, dst=BROADCAST) / ARP(hwsrc=PROGRAM_MAC, psrc=PROGRAM_IP, pdst=ip)
        answer = self.ask(bytes(question), lambda frame: ARP in Ether(frame) and Ether(frame)[ARP].op == 2)
        return str(Ether(answer)[ARP].hwsrc)

    def ping(self, ip: str, payload: bytes) -> bytes:
        """Sends an ICMP echo request to the pod's address and returns the payload of the reply."""
        question = Ether(src=PROGRAM_MAC, dst=self.resolve(ip)) / IP(src=PROGRAM_IP, dst=ip) / ICMP() / payload
        answer = self.ask(bytes(question), lambda frame: ICMP in Ether(frame) and Ether(frame)[ICMP].type == 0)
        return bytes(Ether(answer)[ICMP].payload)


@contextlib.contextmanager
def attached(pod: Namespace, name: str = "eth0", flags: int = TAP | NO_PI) -> Iterator[Program]:
    """Yields a program that has opened the tap device."""
    descriptor = attach(pod, name, flags)
    try:
        yield Program(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("keys", [{}, {"owner": 0, "group": 0}, {"multiQueue": True}, {"mtu": 1300}])
def test_a_program_exchanges_frames_with_the_pod(tap, sandbox, keys):
    """The pod's address answers ARP and ping through the device, and its own packets reach the program."""
    tap.having(mac=MAC, **keys).add(sandbox)
    flags = TAP | NO_PI | (MULTI_QUEUE if "multiQueue" in keys else 0)
    with attached(sandbox, flags=flags) as program:
        assert program.resolve("10.27.0.2") == MAC
        assert program.ping("10.27.0.2", b"hello") == b"hello"
        sandbox.run("ping", "-n", "-c1", "-w1", "10.27.0.55", check=False)
        target = bytes((10, 27, 0, 55))
        frame = program.read_until(lambda frame: frame[12:14] == b"\x08\x06" and frame[38:42] == target)
        assert frame[6:12].hex(":") == MAC
    assert "NO-CARRIER" in shown(sandbox, "eth0")["flags"]


def test_a_program_on_the_bridge_reaches_another(tap, sandbox):
    """Frames of a program pass the bridge in the container to a second tap device."""
    sandbox.ip("link", "add", "br0", "type", "bridge")
    sandbox.ip("link", "set", "br0", "up")
    for ifname in ("eth0", "eth1"):
        tap.having(bridge="br0", ipam=None).add(sandbox, ifname=ifname)
    with attached(sandbox) as one, attached(sandbox, "eth1") as two:
        frame = bytes(Ether(src=PROGRAM_MAC, dst="ff:ff:ff:ff:ff:ff", type=0x88B5)) + b"through the bridge".ljust(
            46, b"\0"
        )
        assert one.ask(frame, lambda received: received[12:14] == b"\x88\xb5", other=two) == frame


def test_ipv6_address_is_usable_after_a_program_opens_the_device(tap, sandbox):
    """Duplicate address detection runs when a program opens the device, and then the address is usable."""
    ipam = {**tap.config["ipam"], "ranges": [[{"subnet": "10.27.0.0/24"}], [{"subnet": "fd00:27::/64"}]]}
    net = tap.having(ipam={key: value for key, value in ipam.items() if key != "subnet"})
    result = net.add(sandbox)
    with attached(sandbox) as program:
        target = ipaddress.ip_address("fd00:27::2").packed
        program.read_until(lambda frame: frame[12:14] == b"\x86\xdd" and frame[54:55] == b"\x87" and target in frame)
        assert eventually(lambda: "tentative" not in sandbox.ip("-6", "address", "show", "dev", "eth0"))
        net.check(sandbox, result)


@pytest.mark.parametrize("multi_queue", [False, True])
def test_queues(tap, sandbox, multi_queue):
    """Several programs, or queues of one, can open a device with multiQueue, and only one any other device."""
    tap.having(multiQueue=multi_queue, ipam=None).add(sandbox)
    wrong, right = (0, MULTI_QUEUE) if multi_queue else (MULTI_QUEUE, 0)
    with pytest.raises(OSError, match="Invalid argument"):
        attach(sandbox, flags=TAP | NO_PI | wrong)
    with attached(sandbox, flags=TAP | NO_PI | right):
        if multi_queue:
            with attached(sandbox, flags=TAP | NO_PI | right):
                pass
        else:
            with pytest.raises(OSError, match="Device or resource busy"):
                attach(sandbox, flags=TAP | NO_PI | right)


def test_program_chooses_the_virtio_header(tap, sandbox):
    """A program that opens the device with IFF_VNET_HDR, as QEMU does, has virtio headers before its frames."""
    tap.having(mac=MAC).add(sandbox)
    with attached(sandbox, flags=TAP | NO_PI | VNET_HDR) as program:
        frame = program.read_until(lambda frame: len(frame) > 24)
        assert frame[16:22].hex(":") == MAC  # after 10 bytes of header, and the destination


PERMISSIONS = [
    ({"owner": 1000}, (1000, 7), True),
    ({"owner": 1000}, (1001, 1000), False),
    ({"group": 2000}, (7, 2000), True),
    ({"group": 2000}, (2000, 7), False),
    ({"owner": 1000, "group": 2000}, (1000, 2000), True),
    ({"owner": 1000, "group": 2000}, (1000, 7), False),
    ({"owner": 0}, (1000, 1000), False),
]
OPEN = """
import fcntl, os, struct, sys
descriptor = os.open("/dev/net/tun", os.O_RDWR)
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
fcntl.ioctl(descriptor, 0x400454CA, struct.pack("16sH22x", b"eth0", 0x1002))
"""


@pytest.mark.parametrize(("keys", "ids", "may_open"), PERMISSIONS)
def test_owner_and_group_may_open_the_device(tap, sandbox, keys, ids, may_open):
    """A user without privileges may open the device only with the configured user and group ID."""
    tap.having(ipam=None, **keys).add(sandbox)
    with sandbox.entered():
        command = ["python3", "-c", OPEN, *map(str, ids)]
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (outcome.returncode == 0) is may_open, outcome.stderr
    assert may_open or "Operation not permitted" in outcome.stderr


@pytest.mark.parametrize("ipam", [True, False])
def test_del_while_a_program_has_the_device_open(tap, sandbox, ipam):
    """DEL deletes the device although a program has it open; the program gets an error."""
    net = tap if ipam else tap.having(ipam=None)
    result = net.add(sandbox)
    descriptor = attach(sandbox)
    try:
        net.delete(sandbox, result)
        assert set(links(sandbox)) == {"lo"}
        with pytest.raises(OSError, match=r"File descriptor in bad state|Input/output error"):
            os.write(descriptor, bytes(60))
    finally:
        os.close(descriptor)
