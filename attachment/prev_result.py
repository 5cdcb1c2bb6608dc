"""Hints for the details of an error about an attachment that differs from prevResult."""

from __future__ import annotations

OTHER_ATTACHMENT = "the runtime gave the result of another attachment, or the configuration was changed since"
RECREATE = "remove the container and create it again"
