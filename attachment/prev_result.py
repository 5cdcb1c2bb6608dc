"""Hints for the details of an error about an attachment that differs from prevResult."""

from __future__ import annotations

OTHER_ATTACHMENT_HINT = "the runtime passed the result of another attachment, or the configuration has changed since"
RECREATE_HINT = "remove the container and create it again"
