"""Networks of Multus: delegates are checked as files are, and with what they need around them; NADs by their names."""

import json

import pytest

from cni.errors import CniError
from podwire.lint import directory
from podwire.main import PLUGINS
from tests.unit.test_lint_directory import bridge, lint, list_findings, network

PORTS = {"type": "portmap", "capabilities": {"portMappings": True}}
CLUSTER = json.loads(network("cluster", bridge("10.22.0.0/24", isGateway=True), PORTS))


def multus(*delegates, **keys):
    """Returns the text of Multus' file."""
    body = {"cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus", "delegates": list(delegates)}
    return json.dumps({**body, "capabilities": {"portMappings": True}, **keys}, indent=1)


def definition(name, config):
    """Returns a NetworkAttachmentDefinition."""
    metadata = {"name": name, "namespace": "default"}
    return {"kind": "NetworkAttachmentDefinition", "metadata": metadata, "spec": {"config": config}}


def lint_definitions(*items):
    """Checks definitions in the list that kubectl prints."""
    data = json.dumps({"kind": "List", "items": items}).encode()
    return directory.lint_definitions(data, "-", PLUGINS, ())


def test_file_of_multus_without_faults(tmp_path):
    """Multus' file has no findings, alone or with the file that its delegate copies."""
    assert list_findings(lint(tmp_path, f00_multus__conf=multus(CLUSTER))) == []
    assert list_findings(lint(tmp_path, f10_cluster__conflist=json.dumps(CLUSTER))) == []
    assert list_findings(directory.lint_file(str(tmp_path / "00-multus.conf"), PLUGINS, ())) == []


@pytest.mark.parametrize("wrapped", [False, True])
def test_fault_in_a_delegate(tmp_path, wrapped):
    """A misspelt key in a delegate is a finding at its place in the file, also if Multus is a plugin of a list."""
    text = multus(json.loads(network("cluster", bridge("10.22.0.0/24", isGatway=True))))
    if wrapped:
        text = network("multus-cni-network", json.loads(text), {"type": "openshift"})
    linted = lint(tmp_path, **{"f00_multus__conflist" if wrapped else "f00_multus__conf": text})
    (finding,) = [one for one in linted.files[0].findings if "isGatway" in one.text]
    prefix = "plugins[0]." if wrapped else ""
    assert (finding.key, finding.severity) == (f"{prefix}delegates[0].plugins[0].isGatway", "warning")
    assert wrapped or "isGatway" in text.splitlines()[finding.line - 1]


def test_delegate_that_no_plugin_accepts(tmp_path):
    """A delegate without plugins is an error, with the key in the file."""
    linted = lint(tmp_path, f00_multus__conf=multus({**CLUSTER, "plugins": []}))
    (finding,) = [one for one in linted.files[0].findings if one.severity == "error"]
    assert (finding.key, finding.text) == ("delegates[0].plugins", '"plugins" has no plugin')


def test_capability_that_multus_does_not_repeat(tmp_path):
    """A capability of the cluster's network that Multus does not declare is a warning: host ports are lost."""
    ((_, severity, text),) = list_findings(lint(tmp_path, f00_multus__conf=multus(CLUSTER, capabilities={})))
    assert severity == "warning"
    assert "host ports are silently lost" in text


@pytest.mark.parametrize(
    ("keys", "severity", "text"),
    [
        ({"clusterNetwork": "{}/cluster.d", "capabilities": {}}, "warning", "host ports are silently lost"),
        ({"clusterNetwork": "{}/absent"}, "warning", "which has no network"),
        ({"clusterNetwork": "absent", "confDir": "{}"}, "note", "is not checked"),
        ({"clusterNetwork": "/absent", "type": "multus-shim"}, "note", "this node does not have it"),
        ({}, "error", "Multus refuses every pod"),
    ],
)
def test_cluster_network_of_multus(tmp_path, keys, severity, text):
    """Multus without a network for eth0 is a finding, and so is a capability that only the cluster's file declares."""
    (tmp_path / "cluster.d").mkdir()
    (tmp_path / "cluster.d" / "10.conflist").write_text(json.dumps(CLUSTER))
    keys = {key: value.format(tmp_path) if isinstance(value, str) else value for key, value in keys.items()}
    ((_, actual, words),) = list_findings(lint(tmp_path, f00_multus__conf=multus(**keys)))
    assert (actual, text in words) == (severity, True), words
    shim = lint(tmp_path, f00_multus__conf=multus(type="multus-shim"))
    assert list_findings(shim) == []


def test_multus_is_not_the_first_file(tmp_path):
    """Multus after another file is never run, and of two files of Multus only the first one."""
    linted = lint(tmp_path, f00_other__conflist=json.dumps(CLUSTER), f10_multus__conf=multus(CLUSTER))
    assert [text.rpartition(": ")[2] for _, _, text in list_findings(linted)] == ["pods get no second network"]
    (tmp_path / "00-other.conflist").unlink()
    linted = lint(tmp_path, f20_multus__conf=multus(CLUSTER, name="again"))
    assert "two files are Multus'" in str(list_findings(linted))


def test_delegate_that_differs_from_its_file(tmp_path):
    """A delegate that has the name of a file and differs is a warning: pods get the delegate."""
    other = network("cluster", bridge("10.23.0.0/24", isGateway=True), PORTS)
    linted = lint(tmp_path, f00_multus__conf=multus(CLUSTER), f10_cluster__conflist=other)
    ((name, severity, text),) = list_findings(linted)
    assert (name, severity, "pods get this network" in text) == ("00-multus.conf", "warning", True)


def test_definitions_are_checked_under_their_names():
    """Each definition is checked by itself and with the others; one without a name has that of the definition."""
    good = network("storage", bridge("10.56.0.0/24", "br-a"))
    wrong = json.dumps({"cniVersion": "1.0.0", **bridge("10.56.0.0/24", "br-b", isGatway=True)})
    linted = lint_definitions(definition("a", good), definition("b", wrong), definition("c", ""))
    assert [(one.path, one.network and one.network.name) for one in linted.files] == [
        ("default/a", "storage"),
        ("default/b", "b"),
        ("default/c", None),
    ]
    texts = " ".join(one.text for one in linted.files[1].findings)
    assert "isGatway" in texts
    assert "overlap" in str(list_findings(linted)) or "10.56.0.0/24" in texts
    assert [one.severity for one in linted.files[2].findings] == ["note"]


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"items": [{"kind": "Pod", "metadata": {}}]}', b'{"kind": "List"}'])
def test_text_without_definitions(data):
    """Text that kubectl does not print for definitions is refused with the command."""
    with pytest.raises(CniError) as refused:
        directory.lint_definitions(data, "-", PLUGINS, ())
    assert "kubectl get net-attach-def" in refused.value.details
