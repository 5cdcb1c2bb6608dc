"""`gettext` for argparse, whose messages are English here."""


def gettext(message: str) -> str:
    """Returns the message."""
    return message


def ngettext(one: str, more: str, count: int) -> str:
    """Returns the message for this many."""
    return one if count == 1 else more
