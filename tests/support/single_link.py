"""One network of each plugin that creates or moves a pod's interface, with the same addresses on the same host.

The suites in tests/netns/test_single_link*.py run these plugins; what only one of them does is in its own file.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.spec import configs
from tests.support import host_device_network, uplink
from tests.support.attaching import Network

ADDRESSES = ("10.25.0.2", "fd00:25::2")  # the first ones that a network's IPAM plugin allocates
ON_MASTER = ("macvlan", "ipvlan", "vlan")
CREATED = (*ON_MASTER, "dummy", "tap")  # plugins that create one interface, in the pod
KEYS: dict[str, dict[str, Any]] = {
    "macvlan": {"master": uplink.UPLINK},
    "ipvlan": {"master": uplink.UPLINK},
    "vlan": {"master": uplink.UPLINK, "vlanId": 100},
    "bridge": {"bridge": "cni0"},
    "host-device": {"device": host_device_network.DEVICE},
}
FEATURES = {**configs.NEEDS, "macvlan": "macvlan"}


def network(on_uplink: Network, plugin: str) -> Network:
    """Returns a dual-stack network of a plugin with STATUS, on the host of a network on the uplink."""
    keys = KEYS.get(plugin, {})
    if plugin == "host-device":
        host_device_network.create_device(on_uplink.host)
        keys = {**keys, "dataDir": str(Path(on_uplink.config["ipam"]["dataDir"]).with_name("devices"))}
    return on_uplink.having(**{"master": None, "cniVersion": "1.1.0", "type": plugin, **keys})


def each(*plugins: str) -> pytest.MarkDecorator:
    """Runs a test for each of the plugins, by default CREATED, on kernels that have its interfaces."""
    return pytest.mark.parametrize("net", [param(plugin) for plugin in plugins or CREATED], indirect=True)


def param(plugin: str, *values: Any, label: str = "") -> Any:
    """Returns a plugin, the parameter of the fixture `net`, with further parameters and the needed feature."""
    marks = [pytest.mark.needs(FEATURES[plugin])] if plugin in FEATURES else []
    return pytest.param(plugin, *values, marks=marks, id=f"{plugin}, {label}" if label else plugin)


def cases(table: dict[str, dict[str, tuple[Any, ...]]]) -> list[Any]:
    """Returns the parameters of a table by plugin and by the label of a case."""
    return [param(plugin, *case, label=label) for plugin, rows in table.items() for label, case in rows.items()]
