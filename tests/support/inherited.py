"""What a process of the tests inherits from the shell that starts them: signals, umask, locale, time zone.

One rule: tests and the programs that they start see the same values however they were started, also by `nohup`, or by a
shell with `trap "" INT`.
"""

import os
import signal

_VARIABLES = {"LANG": "C.UTF-8", "TZ": "UTC"}
_UMASK = 0o022


def reset() -> None:
    """Sets default actions of signals (for SIGINT Python's), unblocks all, and sets umask, locale and time zone."""
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN and number not in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(_UMASK)
    for name in [name for name in os.environ if name == "LANGUAGE" or name.startswith("LC_")]:
        del os.environ[name]
    os.environ.update(_VARIABLES)
