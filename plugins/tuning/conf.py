"""The configuration of tuning: read from its four sources, checked, turned into one frozen value.

One rule: nothing here touches the kernel or a file, and below here nothing is checked again.
"""

from __future__ import annotations

import os

from cni import gojson
from cni.address import parse_mac
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.fields import Fields
from cni.keys import BOOLEAN, INTEGER, MAC, OBJECT, STRING, Key, args_cni, each, runtime_config
from plugins.tuning.attributes import Attributes
from process.values import dataclass

DATA_DIR = "/run/cni/tuning"

_SYS, _NET = "/proc/sys/", "/proc/sys/net/"
_SETTINGS = (
    Key("sysctl", (OBJECT,), (STRING,)),
    MAC,
    *each(INTEGER, "mtu", "txQLen"),
    *each(BOOLEAN, "promisc", "allmulti"),
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
    """A setting: `key` as it is written, `name` below /proc/sys/net, and the value it is to have."""

    key: str
    name: str
    value: str


@dataclass(frozen=True)
class TuningConf:
    """What is asked for; `mac` is the address as it is written, for the result."""

    sysctls: tuple[Sysctl, ...]
    attributes: Attributes
    mac: str
    mtu_both_ends: bool
    data_dir: str

    @property
    def is_idle(self) -> bool:
        """Tells that there is nothing to do."""
        return not (self.sysctls or self.attributes)


def parse(args: CmdArgs, conf: NetConf) -> TuningConf:
    """Reads the whole configuration; raises CniError(7), and CniError(4) for CNI_ARGS (reference: code 999).

    `args.cni` of the configuration outweighs the runtime's `mac`, that CNI_ARGS, and that the plain key.
    """
    fields, own = conf.fields, conf.cni_args
    sysctls = fields.string_map("sysctl")
    if sysctls and (names := gojson.repeated_keys(args.stdin, "sysctl")):
        raise _wrong("duplicated sysctl keys are not allowed", f"twice or more often there is {', '.join(names)}")
    sysctls |= own.string_map("sysctl")
    from_env = args.cni_args("MAC").get("MAC", "")
    mac = own.string("mac") or conf.runtime_config.string("mac") or from_env or fields.string("mac")
    return TuningConf(
        sysctls=tuple(_sysctl(key, value, args.ifname) for key, value in sysctls.items()),
        attributes=Attributes(
            mac=_address(mac) if mac else None,
            promisc=True if own.boolean("promisc") or fields.boolean("promisc") else None,
            mtu=_number(own, "mtu", _INT32_MAX) or _number(fields, "mtu", _INT32_MAX) or None,
            allmulti=_flag(own if own.has("allmulti") else fields, "allmulti"),
            tx_queue=_number(own if own.has("txQLen") else fields, "txQLen", _UINT32_MAX),
        ),
        mac=mac,
        mtu_both_ends=fields.boolean("mtuBothEnds"),
        data_dir=_data_dir(fields),
    )


def lenient_data_dir(conf: NetConf) -> str:
    """Returns where backups are, of a configuration that may be broken."""
    try:
        return _data_dir(conf.fields)
    except CniError:
        return DATA_DIR


def _data_dir(fields: Fields) -> str:
    path = fields.string("dataDir") or DATA_DIR
    if "\0" in path:
        raise fields.error("dataDir", "must be a path", "no path has a NUL character")
    return path


def _sysctl(key: str, value: str, ifname: str) -> Sysctl:
    """Reads one setting; each dot is a slash, but those of the interface's name are put in afterwards (reference)."""
    written = key.replace(".", "/").replace("IFNAME", ifname or "IFNAME", 1)
    path = os.path.normpath(_SYS + written)
    if not path.startswith(_NET) or "\0" in path:
        hint = (
            'write it like "net.ipv4.conf.IFNAME.arp_filter"; others than those of the network are not the pod\'s own'
        )
        raise _wrong(f'invalid net sysctl key: "{written}"', hint)
    return Sysctl(key, path.removeprefix(_NET), value)


def _address(text: str) -> bytes:
    doing = f"invalid args {text} for MAC addr"
    try:
        mac = parse_mac(text)
    except ValueError as error:
        raise _wrong(f"{doing}: {error}", 'write it like "02:00:00:00:00:01"') from None
    if mac[0] & 1 or not any(mac):
        hint = "an interface needs an address of its own: the first byte must be even, as in 02:00:00:00:00:01"
        raise _wrong(f"{doing}: cannot assign requested address", hint)
    return mac


def _number(fields: Fields, key: str, maximum: int) -> int | None:
    return fields.integer(key, minimum=0, maximum=maximum)


def _flag(fields: Fields, key: str) -> bool | None:
    return fields.boolean(key) if fields.has(key) else None


def _wrong(msg: str, details: str) -> CniError:
    """Returns the error in the reference's words."""
    return CniError(Code.INVALID_NETWORK_CONFIG, msg, details)
