"""A stand-in for flannel's plugin, and the file of its daemon with the node's subnets."""

from pathlib import Path

# flannel-io/cni-plugin: completes its `delegate` with the node's subnets, stores that for DEL, and runs it.
PLUGIN = """#!/usr/bin/python3
import ipaddress, json, os, shutil, subprocess, sys
command = os.environ["CNI_COMMAND"]
if command == "VERSION":
    versions = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]
    json.dump({"cniVersion": "1.0.0", "supportedVersions": versions}, sys.stdout)
if command not in ("ADD", "DEL"):
    sys.exit()
config = json.load(sys.stdin)
kept = config.get("dataDir", "/var/lib/cni/flannel") + "/" + os.environ["CNI_CONTAINERID"]
if command == "ADD":
    lines = open(config.get("subnetFile", "/run/flannel/subnet.env")).read().split()
    env = dict(line.split("=", 1) for line in lines)
    subnets = [env[name] for name in ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET") if name in env]
    ranges = [[{"subnet": str(ipaddress.ip_interface(subnet).network)}] for subnet in subnets]
    routes = [{"dst": env[name]} for name in ("FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK") if name in env]
    ipam = {"type": "host-local", **config.get("ipam", {}), "ranges": ranges, "routes": routes}
    computed = {"ipMasq": env["FLANNEL_IPMASQ"] != "true", "mtu": int(env["FLANNEL_MTU"]), "isGateway": True}
    delegate = {"type": "bridge", **computed, **config.get("delegate", {}), "ipam": ipam}
    delegate.update(name=config["name"], cniVersion=config["cniVersion"])
    os.makedirs(os.path.dirname(kept), exist_ok=True)
    json.dump(delegate, open(kept, "w"))
elif not os.path.exists(kept):
    sys.exit()
delegate = json.load(open(kept))
plugin = shutil.which(delegate["type"], path=os.environ["CNI_PATH"])
done = subprocess.run([plugin], input=json.dumps(delegate), text=True)
if command == "DEL":
    os.remove(kept)
sys.exit(done.returncode)
"""


def subnet_env(subnet: str, ipv6: str = "") -> str:
    """Returns what flannel's daemon writes for a node; the subnets are of 10.42.0.0/16 and fd42::/56."""
    lines = ["FLANNEL_NETWORK=10.42.0.0/16", f"FLANNEL_SUBNET={subnet}"]
    lines += ["FLANNEL_IPV6_NETWORK=fd42::/56", f"FLANNEL_IPV6_SUBNET={ipv6}"] if ipv6 else []
    return "\n".join([*lines, "FLANNEL_MTU=1450", "FLANNEL_IPMASQ=true", ""])


def install(directory: Path) -> None:
    """Writes the plugin into a directory."""
    directory.mkdir(exist_ok=True)
    (directory / "flannel").write_text(PLUGIN)
    (directory / "flannel").chmod(0o755)
