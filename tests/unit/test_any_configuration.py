"""Input of every plugin's parser that was changed at random, as by the fuzzers (tests.fuzz.cases)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from attachment.masquerade import options
from cni import args as cni_args
from cni import conf as cni_conf
from cni import versions
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


def parse_case(case: Case) -> None:
    """Parses everything that the verbs of a plugin read of their input; raises CniError."""
    stdin = case.stdin.encode("latin-1")
    args, conf = replace(cni_args.from_env(case.env), stdin=stdin), cni_conf.parse(stdin)
    if case.plugin in LENIENT:
        LENIENT[case.plugin](args, conf)
    parser = PLUGINS[case.plugin].parse
    if parser and conf.version in versions.SUPPORTED:
        parser(args, conf)
    conf.prev_result()
    conf.valid_attachments()
    args.cni_args("IP", "MAC")


@pytest.mark.parametrize("target", ["stdin", "environment", "previous"])
def test_any_input_is_parsed_or_refused(target):
    """Each configuration and environment is parsed, or refused with code 4, 6 or 7; what DEL reads is no error."""
    source = Source(target, 1)
    for number in range(CASES):
        case = source.case(number)
        failure = failure_of(partial(parse_case, case), CniError)
        assert failure is None or failure.code in (4, 6, 7), (number, case)
