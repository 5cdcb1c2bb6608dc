"""SIGTERM at any moment ends a plugin that waits for its configuration."""

import signal
import subprocess
import time

from tests.support.invocation import start_plugin

STARTS = 1000
LATEST_S = 0.003  # by then a plugin waits in a system call
DEADLINE_S = 30.0


def test_signal_at_any_moment_ends_the_plugin():
    """A plugin whose stdin stays open ends on SIGTERM, also when the signal comes just before it waits."""
    for number in range(STARTS):
        process = start_plugin("loopback", "ADD", netns="/no/such/netns")
        sent_at = time.perf_counter() + LATEST_S * number / STARTS
        while time.perf_counter() < sent_at:
            pass
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            process.communicate()
