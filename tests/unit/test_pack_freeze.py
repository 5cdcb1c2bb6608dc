"""Which modules are in the executable."""

from pack import build
from pack.freeze import Module, imported_by


def module(name: str, source: str = "") -> Module:
    return Module(name, source.encode(), name, is_package=False)


def test_modules_that_the_roots_import():
    """Imports count directly and indirectly, inside functions, as attributes of packages; each package is included."""
    modules = [
        module("a"),
        module("a.b", "def f():\n    import c.d"),
        module("a.unused", "import a.e"),
        module("a.e"),
        module("c"),
        module("c.d", "from a import b\nfrom f import g"),
        module("f", "import sys"),
        module("f.g"),
    ]
    root = module("main", "from a.b import x")
    assert [each.name for each in imported_by([root], modules)] == ["a", "a.b", "c", "c.d", "f", "f.g"]


def test_the_agents_modules_are_not_in_the_executable():
    """The executable has the plugins and the tool; what only the node agent imports is left out."""
    names = {each.name for each in build.application()}
    assert {"podwire.main", "plugins.bridge.main", "ipam.host_local.main", "kernel.link", "_boot"} <= names
    assert not {name for name in names if name.partition(".")[0] == "agent"}
    assert not {"kernel.vxlan", "kernel.protocol_route", "attachment.masquerade.cluster"} & names
