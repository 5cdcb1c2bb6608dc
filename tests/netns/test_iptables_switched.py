"""The host switches to another variant of iptables while pods run: DEL and GC remove the first variant's rules."""

import pytest

from tests.support import chained, namespaces, xtables
from tests.support.invocation import gc_keys

PLUGINS = ("bridge", "portmap", "firewall")  # all that create rules with iptables
TABLES = ("nat", "filter")
pytestmark = pytest.mark.needs("iptables_legacy_nat", "iptables_nft_nat")


@pytest.fixture
def legacy(tmp_path):
    """Programs of iptables-legacy."""
    return xtables.variant(tmp_path / "legacy", "legacy")


@pytest.fixture
def nft(tmp_path):
    """Programs of iptables-nft under the usual names; those with "legacy" in their names are installed, too."""
    return xtables.variant(tmp_path / "nft", "nft")


@pytest.fixture
def chain(root, bin_dir, host, store):
    return chained.Chain(host, store, "iptables")


def run(chain, verb, plugin, pod, tools, prev_result=None, **keys):
    path = f"PATH={xtables.path(tools)['PATH']}"
    return chain.run(plugin, verb, pod, prev_result, "/usr/bin/env", path, **keys)


def add(chain, pod, tools):
    result = None
    for plugin in PLUGINS:
        result = run(chain, "ADD", plugin, pod, tools, result).result()
    return result


def of_containers(host, tools):
    """Returns the rules and chains of containers."""
    lines = [line for table in TABLES for lines in xtables.saved(host, tools, table).values() for line in lines]
    return [line for line in lines if "10.22.0." in line or "CNI-DN-" in line or "id: " in line]


@pytest.mark.parametrize("collected", [False, True], ids=["DEL", "GC"])
def test_legacy_rules_are_removed_with_nft(chain, sandbox, legacy, nft, collected):
    """DEL, or GC alone, removes a container's rules of iptables-legacy after the host switched to iptables-nft."""
    with namespaces.temporary() as other:
        add(chain, sandbox, legacy)
        result = add(chain, other, legacy)
        kept = {line for line in of_containers(chain.host, legacy) if "10.22.0.3" in line}
        for plugin in reversed(PLUGINS):
            verb, keys = ("GC", {**gc_keys((other.name, "eth0")), "runtimeConfig": None}) if collected else ("DEL", {})
            run(chain, verb, plugin, sandbox, nft, **keys).assert_silent()
        remaining = of_containers(chain.host, legacy)
        assert kept <= set(remaining)
        assert not [line for line in remaining if "10.22.0.2" in line or sandbox.name in line]
        for plugin in reversed(PLUGINS):
            run(chain, "DEL", plugin, other, nft, result).assert_silent()
    assert of_containers(chain.host, legacy) == []
    assert of_containers(chain.host, nft) == []


def test_nft_rules_are_removed_with_legacy(chain, sandbox, legacy, nft):
    """DEL removes the rules of iptables-nft after the host switched to iptables-legacy."""
    result = add(chain, sandbox, nft)
    for plugin in reversed(PLUGINS):
        run(chain, "DEL", plugin, sandbox, legacy, result).assert_silent()
    assert of_containers(chain.host, nft) == []


def test_without_legacy_tables_no_program_is_run(chain, sandbox, nft, tmp_path):
    """DEL and GC with iptables-nft start no program, even if iptables-legacy is installed, too."""
    tools = xtables.counted(nft, tmp_path / "counted")
    for name in ("iptables", "ip6tables"):
        (tools / f"{name}-legacy-restore").write_text((tools / f"{name}-restore").read_text())
        (tools / f"{name}-legacy-restore").chmod(0o755)
    result = add(chain, sandbox, nft)
    for plugin in reversed(PLUGINS):
        run(chain, "DEL", plugin, sandbox, tools, result).assert_silent()
        run(chain, "GC", plugin, sandbox, tools, **gc_keys(), runtimeConfig=None).assert_silent()
    assert xtables.calls(tools) == []
