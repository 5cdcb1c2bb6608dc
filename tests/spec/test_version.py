"""VERSION, and the output of a plugin without CNI_COMMAND."""

import os
import re

from tests.spec import configs
from tests.support.invocation import finish, start_plugin


def answer(plugin):
    listed = ",".join(f'"{version}"' for version in configs.versions(plugin))
    return f'{{"cniVersion":"1.1.0","supportedVersions":[{listed}]}}\n'.encode()


def test_version_is_one_line(refused):
    """VERSION prints one line: the newest version and all supported versions in ascending order."""
    outcome = refused("VERSION", b'{"cniVersion": "0.4.0"}')
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, answer(refused.plugin), "")


def test_version_needs_no_other_variable(refused):
    """VERSION reads CNI_COMMAND only: other variables may be missing or invalid, and so may stdin."""
    for value in (None, "-/: "):
        outcome = refused("VERSION", b"{", netns=value, container_id=value, ifname=value, env={"CNI_PATH": value})
        assert (outcome.status, outcome.stdout) == (0, answer(refused.plugin))


def test_version_does_not_wait_for_stdin(refused):
    """VERSION does not wait for the end of stdin."""
    readable, writable = os.pipe()
    try:
        outcome = finish(start_plugin(refused.plugin, "VERSION", host=refused.host, stdin=readable))
    finally:
        os.close(readable)
        os.close(writable)
    assert (outcome.status, outcome.stdout) == (0, answer(refused.plugin))


def test_missing_command_prints_the_version(refused):
    """Without CNI_COMMAND, or with an empty one, two lines on stderr name the plugin and its versions."""
    for command in (None, ""):
        outcome = refused(command)
        first, second = outcome.stderr.splitlines()
        assert (outcome.status, outcome.stdout) == (0, b"")
        version = re.fullmatch(rf"CNI {refused.plugin} plugin v(\d+)\.(\d+)\.(\d+)(?:\+[0-9A-Za-z.-]+)?", first)
        # nerdctl parses it: it sets the policy "isolated" only for a semantic version of at least 1.7.1
        assert version is not None
        assert tuple(map(int, version.groups())) >= (1, 7, 1)
        assert second == "CNI protocol versions supported: " + ", ".join(configs.versions(refused.plugin))
