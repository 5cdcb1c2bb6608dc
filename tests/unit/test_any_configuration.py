"""Input of every plugin's parser that was changed at random, as by the fuzzers (tests.fuzz.cases)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from attachment.masquerade import options
from cni import args as cni_args
from cni import conf as cni_conf
from cni import versions
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError
from plugins.firewall import conf as firewall_conf
from plugins.host_device import conf as host_device_conf
from plugins.portmap import conf as portmap_conf
from plugins.sbr import conf as sbr_conf
from plugins.tuning import conf as tuning_conf
from plugins.vrf import conf as vrf_conf
from podwire.main import PLUGINS
from process.values import replace
from tests.fuzz.cases import Case, Source
from tests.support.errors import failure_of

CASES = 800
# What DEL reads of a configuration that ADD may have refused: this causes no error.
LENIENT: dict[str, Any] = {
    "bridge": lambda args, conf: options.may_be_enabled(conf),
    "firewall": firewall_conf.parse_leniently,
    "host-device": lambda args, conf: host_device_conf.parse_leniently(conf),
    "portmap": lambda args, conf: (portmap_conf.parse_leniently(args, conf), portmap_conf.may_have_host_ports(conf)),
    "sbr": lambda args, conf: sbr_conf.lenient_table(conf),
    "tuning": lambda args, conf: tuning_conf.lenient_data_dir(conf),
    "vrf": lambda args, conf: vrf_conf.lenient_name(conf),
}


def read(case: Case, requests: list[tuple[CmdArgs, NetConf]]) -> None:
    """Appends the arguments of a plugin's verb; raises CniError."""
    stdin = case.stdin.encode("latin-1")
    requests.append((replace(cni_args.from_env(case.env), stdin=stdin), cni_conf.parse(stdin)))


def parsers(case: Case, args: CmdArgs, conf: NetConf) -> Iterator[Callable[[], object]]:
    """Yields what parses a part of the arguments, and may refuse it."""
    parse = PLUGINS[case.plugin].parse
    if parse and conf.version in versions.SUPPORTED:
        yield partial(parse, args, conf)
    yield from (conf.prev_result, conf.valid_attachments, partial(args.cni_args, "IP", "MAC"))


@pytest.mark.parametrize("target", ["stdin", "environment", "previous"])
def test_any_input_is_parsed_or_refused(target):
    """Each configuration and environment is parsed, or refused with code 4, 6 or 7; what DEL reads is no error."""
    source = Source(target, 1)
    for number in range(CASES):
        case = source.case(number)
        requests: list[tuple[CmdArgs, NetConf]] = []
        failures = [failure_of(partial(read, case, requests), CniError)]
        for args, conf in requests:
            LENIENT.get(case.plugin, lambda *_: None)(args, conf)
            failures += [failure_of(parse, CniError) for parse in parsers(case, args, conf)]
        assert {failure.code for failure in failures if failure} <= {4, 6, 7}, (number, case)
