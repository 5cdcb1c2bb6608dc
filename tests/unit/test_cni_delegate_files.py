"""The errors for plugin files that cannot be executed."""

import errno

from cni import delegate


def test_file_without_permission_has_a_fix(tmp_path):
    """For a plugin of mode 0644 the details are a chmod command; for a damaged one they say so."""
    program = tmp_path / "bridge"
    program.touch(0o644)
    error = delegate.not_runnable(str(program), PermissionError(errno.EACCES, "Permission denied"))
    assert (error.msg, error.details) == (f"cannot run {program}: Permission denied", f"run: chmod 0755 {program}")
    program.chmod(0o755)
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert "chmod" not in delegate.not_runnable(str(program), denied).details
    assert "damaged" in delegate.not_runnable(str(program), OSError(errno.ENOEXEC, "Exec format error")).details
