"""The nodes that the API server reports, and whether they are certain enough to change the kernel.

One rule: a server that has lost its data, or does not know this node, is no reason to remove routes to nodes that run.
"""

from __future__ import annotations

from agent.cluster import Cluster, ClusterChange
from agent.networks_source import NetworksSource
from agent.node import Node
from agent.object_watch import Synced


class ListedNodes:
    """Passes lists and changes of nodes to the cluster."""

    def __init__(self, cluster: Cluster, source: NetworksSource) -> None:
        self._cluster, self._source = cluster, source
        self.has_list = False  # whether the server has sent its first list
        self.is_synced = False  # whether the server has reported this node
        self._unlisted: dict[str, Node] = {}  # the nodes that a restored API server lacks

    @property
    def are_certain(self) -> bool:
        """Whether the server has reported this node, and the node's networks are known."""
        this = self._cluster.this
        return self.is_synced and this is not None and self._source.is_known(this)

    def replace(self, event: Synced[Node]) -> list[str]:
        """Stores the nodes of a list; returns the names of the known nodes that a server with older data lacks.

        Such nodes stay until the agent restarts: they run, but no later list has them, as kubelet registers its Node
        only when it starts. A list without this node removes none: the server has lost its data, belongs to another
        cluster, or this node is not registered yet. It adds nodes, which the watch does not report again.
        """
        self.has_list = True
        cluster, listed = self._cluster, event.items
        candidates = cluster.nodes if event.is_older else self._unlisted  # older: restored from a backup
        self._unlisted = {name: node for name, node in candidates.items() if name not in {cluster.name, *listed}}
        if cluster.name in listed:
            cluster.replace({**listed, **self._unlisted})
            self.is_synced = True
        else:
            known = {name: node for name, node in cluster.nodes.items() if name != cluster.name}
            cluster.replace({**known, **listed})
        return sorted(self._unlisted) if event.is_older else []

    def set(self, node: Node) -> ClusterChange:
        """Stores a new or changed node."""
        self._unlisted.pop(node.name, None)
        self.is_synced |= node.name == self._cluster.name
        return self._cluster.set(node)

    def remove(self, name: str) -> ClusterChange:
        """Removes a node that was deleted."""
        return self._cluster.remove(name)
