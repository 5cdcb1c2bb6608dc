"""Leaves secrets out of a bug report: of configurations, of the runtime's cache, of sysctls, of all other texts.

Rules for JSON: the value of a key with a secret's name is left out, and so are all values of `args`. Of keys that no
plugin of podwire reads, texts are left out, since nothing is known about them; numbers and booleans stay. A secret
that was left out of one file is replaced wherever it appears in another.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_interface

from cni import gojson, keys
from cni.keys import IP, LIST, OBJECT, STRING, Key
from cni.skel import Plugin

LEFT_OUT = "(left out)"
_SECRET_NAME = re.compile(
    r"pass(wd|word|phrase)|^pass$|secret|token|credential|auth|private|cert|kubeconfig|key$|key_", re.I
)
_SECRET_TEXT = re.compile(r"-----BEGIN |://[^/\s]*:[^/\s]*@|Bearer ")
_SECRET_SYSCTL = re.compile(r"(^|[/_.])(stable_secret|\w*_key)$")
_SHORTEST = 4  # a shorter text is no secret, and replacing it would damage the other texts
_ALWAYS = ("type", "name", "cniVersion", "cniVersions")  # also of other vendors' plugins
_CONFIGURATIONS = ("plugins", "delegate", "delegates")  # keys whose values are configurations; of flannel and Multus
_OF_EVERY_PLUGIN = tuple(key.name for key in (*keys.COMMON, *keys.REQUEST))
_POD_NAMES = ("K8S_POD_NAME", "K8S_POD_NAMESPACE")  # of CNI_ARGS
_RESULT = (
    Key("cniVersion", (STRING,)),
    Key("interfaces", (LIST,), (OBJECT,), keys.keys_of_type(STRING, "name", "mac", "sandbox", "socketPath", "pciID")),
    Key("ips", (LIST,), (OBJECT,), (*keys.keys_of_type(STRING, "address", "version"), Key("gateway", (IP,)))),
    *(Key(name, (OBJECT,), keys=(Key("ip", (STRING,)), Key("gateway", (IP,)), keys.ROUTES)) for name in ("ip4", "ip6")),
    keys.ROUTES,
    keys.DNS,
)
_CACHE = (
    *keys.keys_of_type(STRING, "kind", "containerId", "ifName", "networkName", "netns"),
    Key("result", (OBJECT,), keys=_RESULT),
)


@dataclass
class Redaction:
    """Leaves out secrets; `left_out` lists what was left out, and why, in the order in which it was found."""

    plugins: Mapping[str, Plugin]
    left_out: list[str] = field(default_factory=list)
    _secrets: set[str] = field(default_factory=set)

    def redact_conf(self, name: str, data: bytes) -> bytes:
        """Returns a network configuration without its secrets; `name` is the file's, for the list."""
        return self._dumped(self._redact(self._loaded(name, data), self._schema, name))

    def redact_cache_entry(self, name: str, data: bytes) -> bytes:
        """Returns a file of libcni's cache without secrets, with its configuration as JSON instead of base64."""
        value = self._loaded(name, data)
        if not isinstance(value, dict):
            return self._dumped(self._redact(value, (), name))
        conf, pairs, capabilities = (value.pop(key, None) for key in ("config", "cniArgs", "capabilityArgs"))
        redacted = self._redact(value, _CACHE, name)
        assert isinstance(redacted, dict)
        redacted["config"] = self._redact(self._decoded(name, conf), self._schema, f"{name}: config")
        redacted["cniArgs"] = [self._redact_pair(name, pair) for pair in (pairs if isinstance(pairs, list) else [])]
        redacted["capabilityArgs"] = self._redact(capabilities, self._capabilities, f"{name}: capabilityArgs")
        return self._dumped(redacted)

    def is_secret_sysctl(self, path: str) -> bool:
        """Returns whether a file of /proc/sys is a key, and lists it then."""
        if _SECRET_SYSCTL.search(path):
            self.left_out.append(f"sysctl {path}: a key")
            return True
        return False

    def scrub(self, data: bytes) -> bytes:
        """Returns a text without the secrets that were left out so far."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            for spelling in dict.fromkeys((secret, gojson.dumps(secret)[1:-1], repr(secret)[1:-1])):
                data = data.replace(spelling.encode("utf-8", "surrogateescape"), LEFT_OUT.encode())
        return data

    @cached_property
    def _schema(self) -> tuple[Key, ...]:
        every = (plugin.keys for plugin in self.plugins.values())
        return keys.merged(
            keys.NETWORK, keys.COMMON, keys.REQUEST, *every, (Key("prevResult", (OBJECT,), keys=_RESULT),)
        )

    @property
    def _capabilities(self) -> tuple[Key, ...]:
        return next((key.keys for key in self._schema if key.name == "runtimeConfig"), ())

    def _loaded(self, name: str, data: bytes) -> object:
        try:
            return gojson.loads(data)
        except ValueError:
            self.left_out.append(f"{name}: the whole content, {len(data)} bytes, which is not JSON")
            return LEFT_OUT

    def _dumped(self, value: object) -> bytes:
        return gojson.dumps(value, indent=2).encode() + b"\n"

    def _decoded(self, name: str, conf: object) -> object:
        try:
            return self._loaded(f"{name}: config", binascii.a2b_base64(conf if isinstance(conf, str) else ""))
        except (ValueError, binascii.Error):
            self.left_out.append(f"{name}: config, which is not base64")
            return LEFT_OUT

    def _redact_pair(self, name: str, pair: object) -> object:
        if not isinstance(pair, list) or len(pair) != 2 or pair[0] in _POD_NAMES:
            return pair if isinstance(pair, list) and len(pair) == 2 else LEFT_OUT
        return [str(pair[0]), self._leave_out(pair[1], f"{name}: CNI_ARGS {pair[0]}", "an argument")]

    def _redact(self, value: object, known: Iterable[Key], where: str) -> object:
        """Returns a value of a configuration; `known` are the keys of its objects, `where` is its place."""
        by_name = {key.name: key for key in known}
        if isinstance(value, list):
            return [self._redact(item, by_name.values(), f"{where}[{number}]") for number, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if value.get("type", "") not in ("", *self.plugins):  # another vendor's plugin: its keys have another meaning
            by_name = {name: key for name, key in by_name.items() if name in _OF_EVERY_PLUGIN}
        return {name: self._redact_key(name, item, by_name, where) for name, item in value.items()}

    def _redact_key(self, name: str, value: object, known: Mapping[str, Key], where: str) -> object:
        place = f"{where}: {name}" if " " not in where else f"{where}.{name}"
        if name == "args":
            return self._leave_out(value, place, "an argument")
        if _SECRET_NAME.search(name):
            return self._leave_out(value, place, "its key has a secret's name")
        key = known.get(name)
        if name in _CONFIGURATIONS:
            return self._redact(value, self._schema, place)
        if key is None and name not in _ALWAYS:
            return self._redact_unknown(value, place)
        if isinstance(value, str) and _SECRET_TEXT.search(value):
            return self._leave_out(value, place, "it looks like a secret")
        if key and key.of and key.kinds == (OBJECT,) and isinstance(value, dict):  # the user chooses the names
            return {
                each: self._leave_out(item, f"{place}.{each}", "a key") if _SECRET_SYSCTL.search(each) else item
                for each, item in value.items()
            }
        return self._redact(value, key.keys if key else (), place)

    def _redact_unknown(self, value: object, place: str) -> object:
        """Returns a value of a key that podwire does not know: without its texts."""
        if isinstance(value, str):
            self.left_out.append(f"{place}: a text of a key that podwire does not know")
            return LEFT_OUT
        if isinstance(value, list):
            return [self._redact_unknown(item, f"{place}[{number}]") for number, item in enumerate(value)]
        return self._redact(value, (), place)

    def _leave_out(self, value: object, place: str, reason: str) -> object:
        """Returns a value without any content, and remembers its texts, which other texts may quote."""
        if isinstance(value, dict):
            return {name: self._leave_out(item, f"{place}.{name}", reason) for name, item in value.items()}
        if isinstance(value, list):
            return [self._leave_out(item, f"{place}[{number}]", reason) for number, item in enumerate(value)]
        self.left_out.append(f"{place}: {reason}")
        if isinstance(value, str) and len(value) >= _SHORTEST and not _is_ordinary(value):
            self._secrets.add(value)
        return LEFT_OUT


def _is_ordinary(text: str) -> bool:
    """Returns whether a text is an address, a number or a flag, which other texts contain for other reasons."""
    try:
        ip_interface(text)
    except ValueError:
        return text.isdecimal() or text.lower() in ("true", "false", "none", "null", "auto")
    return True
