"""The commands of the operator's tool, each a module with a COMMAND.

One rule: a command is a line here; help, completion and the manual page follow by themselves.
"""

from podwire.command import Command
from podwire.commands.completion import COMPLETION, HELP, MANUAL
from podwire.commands.doctor import COMMAND as DOCTOR
from podwire.commands.install import INSTALL, UNINSTALL
from podwire.commands.ipam import COMMAND as IPAM
from podwire.commands.lint import COMMAND as LINT
from podwire.commands.list import COMMAND as LIST
from podwire.commands.repair import COMMAND as REPAIR
from podwire.commands.show import COMMAND as SHOW
from podwire.commands.upkeep import GC, STATUS, VERSION
from podwire.commands.verbs import ADD, CHECK, DEL

# In the order of the help.
COMMANDS: tuple[Command, ...] = (
    DOCTOR,
    SHOW,
    LINT,
    IPAM,
    REPAIR,
    ADD,
    CHECK,
    DEL,
    GC,
    STATUS,
    VERSION,
    INSTALL,
    UNINSTALL,
    LIST,
    COMPLETION,
    HELP,
    MANUAL,
)
