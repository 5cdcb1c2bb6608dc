"""podwire install and uninstall with damaged files of podwire, and the link on PATH."""

import pytest

from tests.pack.test_tool_install import names, others, put, run, works  # noqa: F401 # fixtures

DAMAGES = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[:1000],
    "half": lambda content: content[: len(content) // 2],
    "zeros in the middle": lambda content: content[: 1 << 20] + bytes(12 << 20) + content[13 << 20 :],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_podwire_is_replaced_and_not_kept(podwire, names, others, damage):  # noqa: F811
    """A truncated or overwritten podwire is not treated as another plugin: `uninstall` does not restore it."""
    before = (others / "portmap").read_bytes()
    run(podwire, "install", "--bin-dir", others)
    put(others / "bandwidth", DAMAGES[damage](podwire.read_bytes()))
    text = run(podwire, "install", "--bin-dir", others)
    assert f"replaced {others}/bandwidth: it was a damaged podwire" in text
    assert not (others / ".podwire-replaced" / "bandwidth").exists()
    assert works(others / "bandwidth")
    put(others / "bandwidth", DAMAGES[damage](podwire.read_bytes()))
    run(podwire, "uninstall", "--bin-dir", others)
    assert not (others / "bandwidth").exists()
    assert (others / "portmap").read_bytes() == before


def test_uninstall_removes_links_on_path(podwire, root, tmp_path):
    """`uninstall` removes links on PATH to the tool, and no other file or link of that name."""
    directory, links = tmp_path / "bin", [tmp_path / name for name in ("one", "two", "three")]
    run(podwire, "install", "--bin-dir", directory)
    for link_dir in links:
        link_dir.mkdir()
    (links[0] / "podwire").symlink_to(directory / "podwire")
    (links[1] / "podwire").symlink_to("../bin/podwire")
    (links[2] / "podwire").symlink_to(podwire)
    path = ("env", f"PATH={':'.join(map(str, links))}:/usr/bin")
    text = run(podwire, "uninstall", "--bin-dir", directory, "--dry-run", before=path)
    assert f"dry run: remove the link {links[0]}/podwire\n" in text
    assert (links[0] / "podwire").is_symlink()
    text = run(podwire, "uninstall", "--bin-dir", directory, before=path)
    assert f"removed the link {links[1]}/podwire\n" in text
    assert [(link_dir / "podwire").is_symlink() for link_dir in links] == [False, False, True]
