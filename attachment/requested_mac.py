"""The MAC address that the runtime or the network requests for the container's interface."""

from __future__ import annotations

from cni.address import parse_mac
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import invalid_conf


def parse(args: CmdArgs, net_conf: NetConf, kind: str) -> bytes:
    """Returns the MAC address, b"" for none: runtimeConfig before CNI_ARGS before the key `mac`.

    Raises CniError(7) with the texts of the reference plugins, and CniError(4) for CNI_ARGS.
    """
    from_env = args.cni_args("MAC").get("MAC", "")
    text = net_conf.runtime_config.string("mac") or from_env or net_conf.fields.string("mac")
    if not text:
        return b""
    try:
        mac = parse_mac(text)
    except ValueError as error:
        raise invalid_conf(f"invalid args {text} for MAC addr: {error}", "write it like 02:00:00:00:00:01") from None
    if len(mac) != 6 or mac[0] & 1 or not any(mac):
        details = f"{text} is not a unicast Ethernet address: six bytes, the first one even, as in 02:00:00:00:00:01"
        raise invalid_conf(f"failed to create {kind}: cannot assign requested address", details)
    return mac
