"""`gettext` for argparse, with English messages only."""


def gettext(message: str) -> str:
    """Returns the message."""
    return message


def ngettext(one: str, more: str, count: int) -> str:
    """Returns the singular or plural for a count."""
    return one if count == 1 else more
