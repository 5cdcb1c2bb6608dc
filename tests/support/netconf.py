"""A plugin's configuration, parsed and refused in this process as ADD does it."""

import json
from typing import Any

from cni import args as cni_args
from cni import conf
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError
from podwire.main import PLUGINS
from process.values import replace
from tests.support.errors import error_of

ENV = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "cid",
    "CNI_NETNS": "/run/netns/pod",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin",
}


def arguments(stdin: bytes = b"", **env: str) -> CmdArgs:
    """Returns the invocation of an ADD for which a runtime sets the variables `env`."""
    return replace(cni_args.from_env(ENV | env), stdin=stdin)


def encode(plugin: str, keys: dict[str, Any]) -> bytes:
    return json.dumps({"cniVersion": "1.1.0", "name": "net", "type": plugin, **keys}).encode()


def netconf(plugin: str, keys: dict[str, Any]) -> NetConf:
    return conf.parse(encode(plugin, keys))


def parse(plugin: str, keys: dict[str, Any] | bytes, **env: str) -> Any:
    """Returns what the plugin's parser makes of keys, or of a whole text; raises CniError."""
    text = keys if isinstance(keys, bytes) else encode(plugin, keys)
    parser = PLUGINS[plugin].parse
    return parser(arguments(text, **env), conf.parse(text)) if parser else None


def refusal(plugin: str, keys: dict[str, Any] | bytes, **env: str) -> CniError:
    """Returns the error with which the plugin's parser refuses keys."""
    return error_of(lambda: parse(plugin, keys, **env), CniError)
