"""Hints for a prevResult that does not describe the attachment, as CHECK and DEL report it.

One rule: pure. Each hint is a sentence that an operator can act on.
"""

from __future__ import annotations

OTHER_ATTACHMENT = "the runtime gave the result of another attachment, or the configuration was changed since"
RECREATE = "remove the container and create it again"
