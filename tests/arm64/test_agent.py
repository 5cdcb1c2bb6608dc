"""The agent's image for 64-bit ARM on an emulated machine: Debian's kernel for ARM, an API server with TLS, netlink.

One rule: the machine boots once and runs the image as a node does; each test checks a part.
"""

import json
import re

import pytest

from pack.release import agent_image as packed
from pack.release import product
from pack.release.product import BUILT, Product
from tests.arm64.test_machine import sections
from tests.support import agent_image, arm64_api_server, arm64_machine, certificates
from tests.support.binaries import ROOT

pytestmark = pytest.mark.timeout(1500)  # the emulated machine boots in a minute, and starts Python nine times

SERVER = "/server"
_ADDRESS = arm64_api_server.ADDRESSES[1]
SCRIPT = f"""
run() {{ name=$1; shift; echo "@ $name"; "$@" </dev/null 2>&1; echo "@ $name = $?"; }}
in_image() {{ chroot /image env PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }}
agent() {{
    in_image podwire-agent --node-name worker-1 --server $(cat /image{SERVER}/url) --ca-file {SERVER}/ca.crt \
        --token-file {SERVER}/token "$@"
}}
state() {{ ip route show; ip -6 route show; ip link show; find /image/etc/cni /image/opt/cni -type f | sort; }}

mkdir /image
for layer in /layer-*; do tar -xzf $layer -C /image; rm $layer; done
for name in proc sys dev run; do mount --bind /$name /image/$name; done
ln -s /proc/self/fd/0 /dev/stdin
cp -r {SERVER} /image
mkdir /image/etc/podwire
cp {SERVER}/10-podwire.conflist /image/etc/podwire
ip link add eth0 type dummy
ip address add {_ADDRESS}/24 dev eth0
ip link set eth0 up
ip route add default via 192.0.2.1
chroot /image env PYTHONPATH={SERVER} python3 -m tests.support.arm64_api_server {SERVER} &
run modules in_image python3 -I -c '
import sys
sys.path.insert(0, "/usr/lib/podwire-agent")
import _podwire, agent.main
print(_podwire.__file__)'
run help agent --help
while [ ! -s /image{SERVER}/url ]; do sleep 1; done
run first agent --once
run state state
run second agent --once
run plugin env CNI_COMMAND=VERSION /image/opt/cni/bin/bridge
run remove agent --no-install --remove
run after state
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The outcomes of all commands of the script, by name."""
    if not (BUILT["arm64"] / "podwire").is_file() or not packed.BASES["arm64"].is_file():
        pytest.fail("nothing is built for arm64: run `make arm64 agent-base-arm64`", pytrace=False)
    directory = tmp_path_factory.mktemp("agent")
    built = Product(product.version(), 1_780_000_000, "arm64", BUILT["arm64"])
    layout, _ = packed.write([built], directory)
    _, layers = agent_image.read_image(layout, "arm64")
    tls = certificates.create(directory)
    files = {name: (tls / name).read_bytes() for name in ("ca.crt", "server.pem")}
    files |= {"token": b"admin", "10-podwire.conflist": (ROOT / "deploy/install/10-podwire.conflist").read_bytes()}
    modules = [f"tests/support/{name}.py" for name in arm64_api_server.FILES]
    files |= {name: (ROOT / name).read_bytes() for name in ("tests/__init__.py", *modules)}
    files = {f"{SERVER[1:]}/{name}": content for name, content in files.items()}
    files |= {f"layer-{number}": layer for number, layer in enumerate(layers)}
    return sections(arm64_machine.boot(tmp_path_factory.mktemp("machine"), SCRIPT, files))


def test_agent_makes_the_node_ready(outcomes):
    """Every module loads; two runs succeed, and the second one changes nothing; the installed plugins run."""
    assert [outcome.text for outcome in outcomes.values() if outcome.status] == []
    assert "_podwire.cpython-311-aarch64-linux-gnu.so" in outcomes["modules"].text
    assert "usage: podwire-agent" in outcomes["help"].text
    changes = {run: changes_of(outcomes[run].text) for run in ("first", "second")}
    assert len(changes["first"]) > 5
    assert changes["second"] == []
    assert "1.1.0" in json.loads(outcomes["plugin"].text)["supportedVersions"]


def changes_of(log):
    """Returns the changes in the agent's log."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [change for line in lines for change in line.get("changes", [])]


def test_agent_makes_routes_and_removes_them(outcomes):
    """Pods of the node on the link have a direct route, the remote ones a tunnel, until the agent removes both."""
    before, after = outcomes["state"].text, outcomes["after"].text
    assert re.search(r"10\.244\.2\.0/24 via 192\.0\.2\.11 dev eth0", before)
    assert re.search(r"10\.244\.3\.0/24 .*dev podwire-vxlan", before)
    assert "/image/etc/cni/net.d/10-podwire.conflist" in before
    assert "/image/opt/cni/bin/bridge" in before
    assert re.findall(r"10\.244\.|podwire-vxlan", after) == []
