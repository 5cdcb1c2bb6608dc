"""Parses the configuration of tuning, from four sources, into a frozen dataclass.

Nothing here touches the kernel or a file, and no other module validates values of the configuration.
"""

from __future__ import annotations

import os

from cni import gojson
from cni.address import parse_mac
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, invalid_conf
from cni.fields import Fields
from cni.keys import BOOLEAN, INTEGER, MAC, OBJECT, STRING, Key, args_cni, keys_of_type, runtime_config
from plugins.tuning.attributes import Attributes
from process.values import dataclass

DATA_DIR = "/run/cni/tuning"

_SYS, _NET = "/proc/sys/", "/proc/sys/net/"
_SETTINGS = (
    Key("sysctl", (OBJECT,), (STRING,)),
    MAC,
    *keys_of_type(INTEGER, "mtu", "txQLen"),
    *keys_of_type(BOOLEAN, "promisc", "allmulti"),
)
KEYS = (
    *_SETTINGS,
    Key("mtuBothEnds", (BOOLEAN,)),
    Key("dataDir", (STRING,)),
    args_cni(*_SETTINGS),
    runtime_config(MAC),
)
_INT32_MAX, _UINT32_MAX = (1 << 31) - 1, (1 << 32) - 1


@dataclass(frozen=True)
class Sysctl:
    """A sysctl: `key` as written in the configuration, `name` below /proc/sys/net, and the desired value."""

    key: str
    name: str
    value: str


@dataclass(frozen=True)
class TuningConf:
    """The parsed configuration; `mac` is the address as written there, for the result."""

    sysctls: tuple[Sysctl, ...]
    attributes: Attributes
    mac: str
    mtu_both_ends: bool
    data_dir: str

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.sysctls or self.attributes)


def parse(args: CmdArgs, net_conf: NetConf) -> TuningConf:
    """Reads the whole configuration; raises CniError(7), and CniError(4) for CNI_ARGS (reference plugin: code 999).

    Precedence: `args.cni` of the configuration, the runtime's `mac`, CNI_ARGS, the plain key.
    """
    fields, cni_args = net_conf.fields, net_conf.cni_args
    sysctls = fields.string_map("sysctl")
    if sysctls and (names := gojson.repeated_keys(args.stdin, "sysctl")):
        raise invalid_conf("duplicated sysctl keys are not allowed", f"remove the repetitions of {', '.join(names)}")
    sysctls |= cni_args.string_map("sysctl")
    from_env = args.cni_args("MAC").get("MAC", "")
    mac = cni_args.string("mac") or net_conf.runtime_config.string("mac") or from_env or fields.string("mac")
    return TuningConf(
        sysctls=tuple(_sysctl(key, value, args.ifname) for key, value in sysctls.items()),
        attributes=Attributes(
            mac=_address(mac) if mac else None,
            promisc=True if cni_args.boolean("promisc") or fields.boolean("promisc") else None,
            mtu=_number(cni_args, "mtu", _INT32_MAX) or _number(fields, "mtu", _INT32_MAX) or None,
            allmulti=_flag(cni_args if cni_args.has("allmulti") else fields, "allmulti"),
            tx_queue=_number(cni_args if cni_args.has("txQLen") else fields, "txQLen", _UINT32_MAX),
        ),
        mac=mac,
        mtu_both_ends=fields.boolean("mtuBothEnds"),
        data_dir=_data_dir(fields),
    )


def lenient_data_dir(net_conf: NetConf) -> str:
    """Returns the directory of the backups, the default one if the configuration is invalid."""
    try:
        return _data_dir(net_conf.fields)
    except CniError:
        return DATA_DIR


def _data_dir(fields: Fields) -> str:
    path = fields.string("dataDir") or DATA_DIR
    if "\0" in path:
        raise fields.error("dataDir", "must be a path", "remove the NUL character")
    return path


def _sysctl(key: str, value: str, ifname: str) -> Sysctl:
    """Parses one sysctl; dots become slashes, but the interface's name keeps its dots, as in the reference plugin."""
    written = key.replace(".", "/").replace("IFNAME", ifname or "IFNAME", 1)
    path = os.path.normpath(_SYS + written)
    if not path.startswith(_NET) or "\0" in path:
        hint = 'write it like "net.ipv4.conf.IFNAME.arp_filter"; only sysctls below net can be set'
        raise invalid_conf(f'invalid net sysctl key: "{written}"', hint)
    return Sysctl(key, path.removeprefix(_NET), value)


def _address(text: str) -> bytes:
    prefix = f"invalid args {text} for MAC addr"
    try:
        mac = parse_mac(text)
    except ValueError as error:
        raise invalid_conf(f"{prefix}: {error}", 'write it like "02:00:00:00:00:01"') from None
    if mac[0] & 1 or not any(mac):
        hint = "an interface needs a unicast address: the first byte must be even, as in 02:00:00:00:00:01"
        raise invalid_conf(f"{prefix}: cannot assign requested address", hint)
    return mac


def _number(fields: Fields, key: str, maximum: int) -> int | None:
    return fields.integer(key, minimum=0, maximum=maximum)


def _flag(fields: Fields, key: str) -> bool | None:
    return fields.boolean(key) if fields.has(key) else None
