"""The commands of the operator's tool, each a module with a COMMAND.

A command is one line here; help, completion and the manual page are derived from it.
"""

from podwire.command import Command
from podwire.commands.add import ADD
from podwire.commands.bugreport import COMMAND as BUGREPORT
from podwire.commands.check import CHECK
from podwire.commands.completion import COMPLETION
from podwire.commands.del_ import DEL
from podwire.commands.doctor import COMMAND as DOCTOR
from podwire.commands.gc import GC
from podwire.commands.help import HELP
from podwire.commands.install import INSTALL, UNINSTALL
from podwire.commands.ipam import COMMAND as IPAM
from podwire.commands.lint import COMMAND as LINT
from podwire.commands.list import COMMAND as LIST
from podwire.commands.man import MANUAL
from podwire.commands.metrics import COMMAND as METRICS
from podwire.commands.policy import COMMAND as POLICY
from podwire.commands.repair import COMMAND as REPAIR
from podwire.commands.selftest import COMMAND as SELFTEST
from podwire.commands.show import COMMAND as SHOW
from podwire.commands.status import STATUS
from podwire.commands.test import COMMAND as TEST
from podwire.commands.top import COMMAND as TOP
from podwire.commands.trace import COMMAND as TRACE
from podwire.commands.version import VERSION

# In the order of the help.
COMMANDS: tuple[Command, ...] = (
    DOCTOR,
    SHOW,
    TOP,
    TEST,
    TRACE,
    LINT,
    IPAM,
    POLICY,
    REPAIR,
    BUGREPORT,
    METRICS,
    ADD,
    CHECK,
    DEL,
    GC,
    STATUS,
    VERSION,
    SELFTEST,
    INSTALL,
    UNINSTALL,
    LIST,
    COMPLETION,
    HELP,
    MANUAL,
)
