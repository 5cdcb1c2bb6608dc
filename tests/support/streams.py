"""Streams in memory that stand for the standard streams of a plugin that runs in the tests' own process."""

import io
import os

# poll(2) reports it as readable at any time.
_READY = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


class MemoryStdin(io.BytesIO):
    """Standard input whose writer has written all of it."""

    def fileno(self) -> int:
        return _READY
