"""VERSION, and what a plugin tells without a command."""

import os
import re
import subprocess

from tests.spec import configs
from tests.support.invocation import environment, finish, start_plugin


def answer(plugin):
    listed = ",".join(f'"{version}"' for version in configs.versions(plugin))
    return f'{{"cniVersion":"1.1.0","supportedVersions":[{listed}]}}\n'.encode()


def test_version_is_one_line(refused):
    """VERSION answers with one compact line: the newest version and all supported ones in ascending order."""
    outcome = refused("VERSION", b'{"cniVersion": "0.4.0"}')
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, answer(refused.plugin), "")


def test_version_needs_no_other_variable(refused):
    """VERSION looks at CNI_COMMAND only: other variables may be missing or hold rubbish, and stdin too."""
    for rubbish in (None, "-/: "):
        outcome = refused(
            "VERSION", b"{", netns=rubbish, container_id=rubbish, ifname=rubbish, env={"CNI_PATH": rubbish}
        )
        assert (outcome.status, outcome.stdout) == (0, answer(refused.plugin))


def test_version_does_not_wait_for_stdin(refused):
    """VERSION answers while the runtime keeps stdin open."""
    readable, writable = os.pipe()
    try:
        outcome = finish(start_plugin(refused.plugin, "VERSION", host=refused.host, stdin=readable))
    finally:
        os.close(readable)
        os.close(writable)
    assert (outcome.status, outcome.stdout) == (0, answer(refused.plugin))


def test_version_works_with_closed_stdin(plugin, bin_dir):
    """VERSION works in a process that has no stdin at all."""
    closed = ["sh", "-c", 'exec "$0" <&-', str(bin_dir / plugin)]
    done = subprocess.run(closed, env=environment("VERSION"), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, answer(plugin), b"")


def test_without_command_the_plugin_tells_what_it_is(refused):
    """Without CNI_COMMAND, or with an empty one, two lines on stderr name the plugin and its versions."""
    for command in (None, ""):
        outcome = refused(command)
        first, second = outcome.stderr.splitlines()
        assert (outcome.status, outcome.stdout) == (0, b"")
        version = re.fullmatch(rf"CNI {refused.plugin} plugin v(\d+)\.(\d+)\.(\d+)(?:\+[0-9A-Za-z.-]+)?", first)
        # nerdctl reads it: without a semantic version from 1.7.1 on it gives no network the policy "isolated"
        assert version is not None
        assert tuple(map(int, version.groups())) >= (1, 7, 1)
        assert second == "CNI protocol versions supported: " + ", ".join(configs.versions(refused.plugin))
