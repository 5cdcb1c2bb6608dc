"""The verbs of tuning."""

from __future__ import annotations

from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.result import Result
from cni.skel import Plugin


def cmd_add(args: CmdArgs, conf: NetConf) -> Result:
    """Fails."""
    raise CniError(Code.INTERNAL, "not yet")


def cmd_other(args: CmdArgs, conf: NetConf) -> None:
    """Fails."""
    raise CniError(Code.INTERNAL, "not yet")


PLUGIN = Plugin("tuning", cmd_add=cmd_add, cmd_del=cmd_other, cmd_check=cmd_other)
