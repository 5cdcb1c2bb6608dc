"""DEL of a host veth that another DEL of the same attachment deletes at the same time."""

from __future__ import annotations

import json

from attachment import veth
from cni import conf
from cni.args import CmdArgs
from kernel import address
from kernel.rtnl import Socket
from tests.support import netstate


def test_host_veth_that_disappears_is_deleted(host, sandbox, monkeypatch):
    """DEL succeeds if the kernel deletes the host veth while DEL checks that it is the attachment's."""
    host.ip("link", "add", "veth1", "type", "veth", "peer", "eth0", "netns", sandbox.name)
    macs = [netstate.shown(each, name)["address"] for each, name in ((host, "veth1"), (sandbox, "eth0"))]
    interfaces = [{"name": "veth1", "mac": macs[0]}, {"name": "eth0", "mac": macs[1], "sandbox": sandbox.path}]
    result = {"cniVersion": "1.0.0", "interfaces": interfaces}
    stdin = {"cniVersion": "1.0.0", "name": "net", "type": "ptp", "prevResult": result}
    list_on_link = address.list_on_link

    def list_after_deletion(socket, link):
        host.ip("link", "del", "veth1")
        return list_on_link(socket, link)

    monkeypatch.setattr(address, "list_on_link", list_after_deletion)
    with host.entered():
        host_socket = Socket()
    with host_socket:
        args = CmdArgs("DEL", "id", "", "eth0", "", (), {})
        veth.delete_attachment_veth(args, conf.parse(json.dumps(stdin).encode()), host_socket)
    assert "veth1" not in netstate.links(host)
