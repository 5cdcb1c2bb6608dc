"""The sample networks in conf/: the kernel features that each needs, and the host's interfaces that it names."""

from pathlib import Path

from tests.spec import configs
from tests.support.binaries import ROOT
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList

FILES = sorted((ROOT / "conf").glob("*.conflist"))


def list_features(path: Path) -> list[str]:
    """Returns the kernel features that a sample needs for nftables, limits and kinds of interfaces."""
    network = NetworkList.load(path)
    kinds = [configs.NEEDS[plugin["type"]] for plugin in network.plugins if plugin["type"] in configs.NEEDS]
    return kinds + ["nft_nat"] * ("nftables" in path.stem) + ["ifb", "tbf"] * ("bandwidth" in path.read_text())


def create_interfaces(host: Namespace, network: NetworkList) -> set[str]:
    """Creates the interfaces that a list names as `master` or `device`, unless they exist, each with its peer.

    Masters and peers are up. Returns the names of all these interfaces.
    """
    masters = {plugin["master"] for plugin in network.plugins if plugin.get("master")}
    devices = {plugin["device"] for plugin in network.plugins if plugin.get("device")}
    existing = host.ip("-o", "link")
    for name in masters | devices:
        if f": {name}@" not in existing:
            host.ip("link", "add", name, "type", "veth", "peer", "name", f"{name}-peer")
            for end in {f"{name}-peer"} | ({name} & masters):
                host.ip("link", "set", end, "up")
    return masters | devices | {f"{name}-peer" for name in masters | devices}
