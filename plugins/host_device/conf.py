"""Parses and validates the configuration of host-device into a frozen HostDeviceConf.

One rule: no I/O. `plugins.host_device.selection` finds the device that the configuration selects.
"""

from __future__ import annotations

from collections.abc import Callable

from attachment import container_interface
from cni.conf import NetConf
from cni.errors import CniError, invalid_conf
from cni.keys import DNS as DNS_KEY
from cni.keys import IPAM_TYPE, STRING, Key, keys_of_type, runtime_config
from cni.result import DNS
from process.values import dataclass

DATA_DIR = "/var/lib/cni/host-device"
KEYS = (
    *keys_of_type(STRING, "device", "hwaddr", "kernelpath", "pciBusID", "dataDir"),
    runtime_config(Key("deviceID", (STRING,))),
    IPAM_TYPE,
    DNS_KEY,
)


@dataclass(frozen=True)
class HostDeviceConf:
    """The parsed configuration of host-device.

    The first non-empty one of `device_id`, `device`, `hwaddr`, `kernel_path` and `pci_bus_id` selects the device.
    `device_id` comes from the runtime, which has it from a device plugin. `data_dir` has a file for each attachment.
    `dns`, unless None, replaces the DNS settings of the IPAM result.
    """

    device_id: str = ""
    device: str = ""
    hwaddr: str = ""
    kernel_path: str = ""
    pci_bus_id: str = ""
    data_dir: str = DATA_DIR
    dns: DNS | None = None

    @property
    def selects_device(self) -> bool:
        """Whether a key selects the device."""
        return bool(self.device_id or self.device or self.hwaddr or self.kernel_path or self.pci_bus_id)


def parse(net_conf: NetConf) -> HostDeviceConf:
    """Returns the validated configuration; raises CniError(7), also if no key selects a device."""
    container_interface.refuse_untyped_ipam(net_conf)
    fields = net_conf.fields
    conf = HostDeviceConf(
        device_id=_bus_id(net_conf.runtime_config.string("deviceID"), "runtimeConfig.deviceID"),
        device=fields.string("device"),
        hwaddr=fields.string("hwaddr"),
        kernel_path=fields.string("kernelpath"),
        pci_bus_id=_bus_id(fields.string("pciBusID"), "pciBusID"),
        data_dir=_data_dir(net_conf),
        dns=container_interface.parse_dns(net_conf),
    )
    # A file without these keys is valid if the runtime passes `deviceID`.
    if not conf.selects_device and not fields.section("capabilities").boolean("deviceID"):
        raise no_device_error()
    return conf


def no_device_error() -> CniError:
    """Returns the error of a configuration that selects no device; text of the reference plugin."""
    return invalid_conf(
        'specify either "device", "hwaddr", "kernelpath" or "pciBusID"',
        'or have a device plugin choose one: "capabilities": {"deviceID": true}',
    )


def parse_leniently(net_conf: NetConf) -> HostDeviceConf:
    """Returns the fields that DEL and GC need, data_dir and those that select the device; drops invalid values."""
    fields = net_conf.fields
    return HostDeviceConf(
        device_id=_or_default(lambda: net_conf.runtime_config.string("deviceID"), ""),
        device=_or_default(lambda: fields.string("device"), ""),
        hwaddr=_or_default(lambda: fields.string("hwaddr"), ""),
        kernel_path=_or_default(lambda: fields.string("kernelpath"), ""),
        pci_bus_id=_or_default(lambda: fields.string("pciBusID"), ""),
        data_dir=_or_default(lambda: _data_dir(net_conf), DATA_DIR),
    )


def _or_default(read: Callable[[], str], default: str) -> str:
    try:
        return read()
    except CniError:
        return default


def _data_dir(net_conf: NetConf) -> str:
    data_dir = net_conf.fields.string("dataDir") or DATA_DIR
    if not data_dir.startswith("/") or "\0" in data_dir:
        raise net_conf.fields.error("dataDir", f"must be an absolute path, not {data_dir}", "begin it with /")
    return data_dir.rstrip("/") or "/"


def _bus_id(value: str, key: str) -> str:
    """Returns `value`, a device's name on its bus; raises CniError(7) if it cannot be a part of a path."""
    if value in (".", "..") or "/" in value or "\0" in value:
        raise invalid_conf(f'"{key}" is not the name of a device on a bus: {value}', 'write it like "0000:01:00.0"')
    return value
