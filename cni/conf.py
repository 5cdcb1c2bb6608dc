"""NetConf: the network configuration that a plugin reads on stdin, with the keys common to all plugins.

The keys that a runtime adds are read here; a plugin's other keys are read in its conf.py.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cni import gojson
from cni.errors import CniError, Code, invalid_conf
from cni.fields import Fields
from cni.result import Result, from_json
from cni.versions import at_least
from process.values import dataclass, field

VALID_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")

_ATTACHMENT_KEYS = (
    "cni.dev/valid-attachments",
    "cni.dev/attachments",
)  # the second: an older text of the specification


# podwire's: when the valid attachments were listed, in nanoseconds since 1970. Younger reservations are kept: the list
# may lack the attachment of an ADD that was running.
LISTED_AT = "podwire/listed-at"


class Attachment(NamedTuple):
    """An attachment as GC identifies it: container ID and interface name."""

    container_id: str
    ifname: str


@dataclass(frozen=True)
class NetConf:
    """A request configuration: the common keys, typed, and `fields` for the plugin's other keys.

    `cni_version` is "" when the key is absent, which means 0.1.0.
    """

    name: str
    cni_version: str
    fields: Fields = field(repr=False)
    _items: dict[str, object] = field(repr=False)

    @property
    def version(self) -> str:
        """The configuration's version, "0.1.0" when it has none."""
        return self.cni_version or "0.1.0"

    @property
    def runtime_config(self) -> Fields:
        """The runtime's `runtimeConfig`, empty when absent."""
        return self.fields.section("runtimeConfig")

    @property
    def cni_args(self) -> Fields:
        """The `args.cni` object, empty when absent."""
        return self.fields.section("args").section("cni")

    def prev_result(self) -> Result | None:
        """Reads `prevResult`, None when absent; CniError(7) when it is unusable (reference: code 999)."""
        raw = self.fields.raw("prevResult")
        if raw is None:
            return None
        try:
            return from_json(raw, self.version)
        except CniError as error:
            raise error.prefixed("could not parse prevResult: ") from None

    def lenient_prev_result(self) -> Result | None:
        """Reads `prevResult` for DEL, None for a missing or unusable one."""
        try:
            return self.prev_result()
        except CniError:
            return None

    def required_prev_result(self, msg: str = "Required prevResult missing") -> Result:
        """Reads `prevResult`; raises CniError(7) as `prev_result` does, and with `msg` when it is absent."""
        result = self.prev_result()
        if result is None:
            details = "ADD of a chained plugin and each CHECK need the result of what ran before"
            raise invalid_conf(msg, details)
        return result

    @property
    def ipam_type(self) -> str:
        """The type of the IPAM delegate, "" for a layer 2 network; CniError(7) for wrong types."""
        return self.fields.section("ipam").string("type")

    def refuse_missing_ipam(self) -> None:
        """Raises CniError(7) for a layer 2 network of CNI 0.1.0 or 0.2.0, whose results are addresses."""
        if not self.ipam_type and not at_least(self.version, "0.3.0"):
            raise invalid_conf(
                "cannot convert: no valid IP addresses",
                f'cniVersion {self.version} has no results without addresses; add "ipam" or use 0.3.0',
            )

    def valid_attachments(self) -> frozenset[Attachment] | None:
        """Reads the attachments that GC must keep; None when the key is absent, and then nothing may be removed.

        `null` is an empty list, since CRI-O sends it for a network without pods. Raises CniError(7).
        """
        present = {key.casefold() for key in self._items}
        key = next((key for key in _ATTACHMENT_KEYS if key in present), None)
        if key is None:
            return None
        attachments = frozenset(
            Attachment(item.string("containerID"), item.string("ifname")) for item in self.fields.objects(key)
        )
        if any(
            not (item.container_id and item.ifname) for item in attachments
        ):  # it would match nothing, and GC would delete
            raise self.fields.error(
                key, 'has an element without "containerID" or "ifname"', "the runtime must name each attachment"
            )
        return attachments


def not_chained(plugin: str) -> CniError:
    """Returns the error of a chained plugin's ADD without prevResult (text of the reference)."""
    return invalid_conf(
        "must be called as chained plugin", f'{plugin} works on an existing interface: list it behind one, in "plugins"'
    )


def parse(stdin: bytes) -> NetConf:
    """Reads the request configuration on stdin (reference: skel's validateConfig, in its order).

    Raises CniError(6) for input that is not a JSON object and CniError(7) for a missing or bad network name.
    """
    prefix = "error unmarshall network config: "
    try:
        items = gojson.loads(stdin)
    except ValueError as error:
        raise CniError(Code.DECODING_FAILURE, f"{prefix}{error}", "stdin must hold one JSON object") from None
    if items is None:
        items = {}
    if not isinstance(items, dict):
        raise CniError(Code.DECODING_FAILURE, prefix + "it is not a JSON object", "stdin must hold one JSON object")
    fields = Fields(items)
    try:
        name = fields.string("name")
        version = fields.string("cniVersion")
    except CniError as error:
        raise CniError(Code.DECODING_FAILURE, prefix + error.msg.partition(": ")[2], error.details) from None
    if not name:
        raise invalid_conf("missing network name", 'the runtime must add "name" to the configuration')
    if not VALID_NAME.fullmatch(name):
        raise invalid_conf("invalid characters found in network name", name)
    if fields.has("plugins") and not fields.has("type"):
        raise invalid_conf(
            "this is a network list, not the configuration of one plugin",
            'pass one element of "plugins", with the list\'s "name" and "cniVersion" added',
        )
    return NetConf(name, version, fields, items)
