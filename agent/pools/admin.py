"""The HTTP pages and actions of the agent for `podwire ipam`, as JSON.

    GET  /pools          {"space": {...} or null, "node": {...}, "problem": "the store does not answer: ..."}
    GET  /pools/cluster  {"space", "pools", "nodes", "blocks", "findings"}; reads all objects of the store
    POST /pools/space    {"pools": [...], "dryRun": true} or {"pools": [...], "current": "..."}
    POST /pools/reclaim  {"node": "ID", "record": "...", "statement": "powered-off"}; "record" as in /pools/cluster
    POST /pools/recover  {"joined": ["ID", ...]}

An error is {"msg", "details"}. The server accepts POST only on its Unix socket, which only root can use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from agent.api_errors import ApiError
from agent.api_object import Document
from agent.http_server import BAD_REQUEST, UNAVAILABLE, Answer, Pages, Refusal, json_answer
from agent.pools import admin_changes, cluster_check
from agent.pools.block_protocol import Evidence
from agent.pools.cluster_view import digest_of_space, format_cluster, read_cluster
from agent.pools.documents import decode, is_node
from agent.pools.node_report import LocalReport, format_report
from agent.pools.space import format_space
from agent.pools.store import Store

_STATEMENTS = {"powered-off": Evidence.POWERED_OFF}
_CAUSE_HINT = "the cause is on the agent's page /readyz and in its log"


class Admin:
    """The pages and actions for one store; `report` returns the manager's report of this node.

    They run in the threads of the HTTP server; actions run sequentially.
    """

    def __init__(self, store: Store, report: Callable[[], LocalReport]) -> None:
        self._store, self._report = store, report
        self._action_lock = threading.Lock()

    def pages(self) -> Pages:
        """Returns the pages, by path."""
        return {"/pools": self._node_page, "/pools/cluster": self._cluster_page}

    def actions(self) -> dict[str, Callable[[bytes], Answer]]:
        """Returns the actions, by path."""
        actions = {
            "/pools/space": self._replace_pools,
            "/pools/reclaim": self._reclaim,
            "/pools/recover": self._recover,
        }
        return {path: self._action(act) for path, act in actions.items()}

    def _node_page(self) -> Answer:
        document: dict[str, object] = {"space": None, "current": "", "problem": ""}
        try:
            space = admin_changes.read_space(self._store).value
            document["current"] = digest_of_space(space)
            document["space"] = format_space(space) if space else None
        except ApiError as error:
            document["problem"] = f"the store does not answer: {error}"
        except Refusal as error:
            document["problem"] = error.msg
        return json_answer({**document, "node": format_report(self._report())})

    def _cluster_page(self) -> Answer:
        try:
            cluster = read_cluster(self._store)
            findings = cluster_check.find_faults(cluster)
            if findings:  # blocks change between the reads: only a finding of two consecutive reads is a fault
                cluster = read_cluster(self._store)
                findings = [finding for finding in cluster_check.find_faults(cluster) if finding in findings]
        except ApiError as error:
            return Refusal(f"the store does not answer: {error}", _CAUSE_HINT, UNAVAILABLE).answer()
        return json_answer({**format_cluster(cluster), "findings": [finding.to_json() for finding in findings]})

    def _replace_pools(self, request: Document) -> Mapping[str, object]:
        current, dry_run = request.get("current", ""), request.get("dryRun", False)
        if not isinstance(current, str) or not isinstance(dry_run, bool):
            raise Refusal('"current" is not a text, or "dryRun" is neither true nor false', status=BAD_REQUEST)
        change = admin_changes.replace_pools(self._store, self._report(), request, current=current, dry_run=dry_run)
        return change.to_json()

    def _reclaim(self, request: Document) -> Mapping[str, object]:
        node, record, statement = (request.get(key) for key in ("node", "record", "statement"))
        if not isinstance(node, str) or not is_node(node) or not isinstance(record, str):
            raise Refusal('"node" is not a node ID, or "record" is not a text', status=BAD_REQUEST)
        if not isinstance(statement, str) or statement not in _STATEMENTS:
            raise Refusal('"statement" is not "powered-off"', status=BAD_REQUEST)
        evidence = _STATEMENTS[statement]
        reclaimed = admin_changes.reclaim_node(self._store, self._report(), node, record, evidence)
        return {"freed": list(map(str, reclaimed.blocks)), "problem": reclaimed.problem}

    def _recover(self, request: Document) -> Mapping[str, object]:
        joined = request.get("joined", [])
        if not isinstance(joined, list) or not all(isinstance(node, str) for node in joined):
            raise Refusal('"joined" is not a list of texts', status=BAD_REQUEST)
        return {"epoch": admin_changes.recover_store(self._store, self._report(), joined)}

    def _action(self, act: Callable[[Document], Mapping[str, object]]) -> Callable[[bytes], Answer]:
        """Returns an action with a JSON body and a JSON answer; errors become answers."""

        def run(body: bytes) -> Answer:
            try:
                request = decode(body)
            except ValueError as error:
                return Refusal(f"the request is refused: {error}", status=BAD_REQUEST).answer()
            try:
                with self._action_lock:
                    return json_answer(act(request))
            except Refusal as error:
                return error.answer()
            except ValueError as error:  # of a space that is not valid
                return Refusal(str(error), "correct the object, or restore a backup of the store").answer()
            except ApiError as error:
                hint = f"run the command again when the store answers; {_CAUSE_HINT}"
                return Refusal(f"the store does not answer: {error}", hint, UNAVAILABLE).answer()

        return run
