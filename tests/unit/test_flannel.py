"""The configuration of flannel's delegate, from the list and from the file with the node's subnets."""

import json
from pathlib import Path

from podwire.flannel import has_ranges, resolve_delegate
from tests.support.flannel import subnet_env
from tests.support.unit_node import new_node


def test_delegate_of_flannel(tmp_path: Path) -> None:
    """The keys of "delegate" win over the file's, and the file's subnets over those of "ipam"."""
    path = tmp_path / "subnet.env"
    plugin = {"type": "flannel", "subnetFile": str(path), "delegate": {"mtu": 9000}, "ipam": {"dataDir": "/x"}}
    before = resolve_delegate(plugin)
    assert (before["type"], before["ipam"]) == ("bridge", {"type": "host-local", "dataDir": "/x"})
    assert not has_ranges(before)
    path.write_text(subnet_env("10.42.3.1/24", "fd42::1/64"))
    ranges = [[{"subnet": "10.42.3.0/24"}], [{"subnet": "fd42::/64"}]]
    expected = {"type": "bridge", "isGateway": True, "ipMasq": False, "mtu": 9000}
    ipam = {"type": "host-local", "dataDir": "/x", "ranges": ranges}
    assert resolve_delegate(plugin) == {**expected, "ipam": ipam}
    other = {"type": "bridge"}
    assert resolve_delegate(other) is other


def test_masquerading_of_the_delegate(tmp_path: Path) -> None:
    """A network of flannel is masqueraded by the delegate if flannel's daemon does not do it."""
    node, path = new_node(tmp_path), tmp_path / "subnet.env"
    path.write_text(subnet_env("10.42.3.1/24").replace("IPMASQ=true", "IPMASQ=false"))
    plugin = {"type": "flannel", "subnetFile": str(path)}
    content = json.dumps({"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]})
    (tmp_path / "net.d" / "10.conflist").write_text(content)
    (item,) = node.interfaces
    assert item.masquerades


def test_unreadable_mtu_of_flannel(tmp_path: Path) -> None:
    """A file with more digits than Python reads is one that cannot be read, and no error."""
    path = tmp_path / "subnet.env"
    path.write_text(f"{subnet_env('10.42.3.1/24', '')}\nFLANNEL_MTU={'9' * 5000}\n")
    assert not has_ranges(resolve_delegate({"type": "flannel", "subnetFile": str(path)}))
