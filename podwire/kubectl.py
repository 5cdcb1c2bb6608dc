"""`kubectl podwire`: the tool as a plugin of kubectl, which runs it on a node of the cluster.

This file, linked as `kubectl-podwire` on the PATH of kubectl, runs a command of the tool in a pod that kubectl creates
on the node, prints its output, and deletes the pod whatever happens. The pod has the host's network and processes, and
the host's directories at their own paths. It has its own mounts, as every container: the tool's rules for foreign
mount namespaces hold: what it cannot see is "not seen", and never "gone". As `kubectl_complete-podwire` it completes.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import REMAINDER, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from typing import TextIO

from cni import gojson
from cni.errors import CniError, Code, internal
from cni.skel import Plugin
from podwire import cli
from podwire.command import ExitStatus
from podwire.command_tree import command_tree, completions
from podwire.lint.known import nearest
from podwire.node.programs import find_program
from podwire.output import Output, print_error
from process import child, signals
from process.signals import Terminated
from process.stderr import one_line

PLUGIN, COMPLETION = "kubectl-podwire", "kubectl_complete-podwire"
# The commands that only read; `bugreport` would write its file in the pod.
COMMANDS = ("doctor", "show", "test", "trace", "lint", "ipam", "status", "top")
# The executable is the node's, and static: any image will do. Most nodes have this one.
IMAGE, IMAGE_VARIABLE = "registry.k8s.io/pause:3.10", "PODWIRE_IMAGE"
_PROGRAM = "/opt/cni/bin/podwire"
_NAMESPACE = "kube-system"  # where pods with the host's network and processes are allowed
_START_S, _POLL_S, _CALL_S, _RUN_S = 60.0, 0.5, 30.0, 600.0
_DEADLINE_S = 900  # the cluster ends a pod that nothing deleted
_ENDED = ("Succeeded", "Failed")
_NO_FILES = ":4"  # cobra's ShellCompDirectiveNoFileComp
# The host's directories that the tool reads, at their own paths. New namespaces appear by mount propagation.
_DIRECTORIES = {"net-d": "/etc/cni/net.d", "bin": "/opt/cni/bin", "state": "/var/lib/cni", "netns": "/run/netns"}
_ABOUT = """\
Runs a command of podwire on this machine or, with --node, on a node of the cluster: kubectl creates a pod there with
the host's network, processes and directories, prints the command's output, and deletes the pod."""
_EPILOG = """\
The pod is privileged, and has the rights of root on the node: it needs the right to create such pods in the namespace.
Exit status: that of the command; 3 if it could not be run on the node.

examples:
  kubectl podwire --node worker-1 doctor
  kubectl podwire --node worker-1 show --wrong"""
_PASSED_ON = ("context", "kubeconfig", "cluster", "user")


def run(
    name: str, arguments: Sequence[str], env: Mapping[str, str], stdout: TextIO, plugins: Mapping[str, Plugin]
) -> int:
    """Runs the plugin of kubectl, or its completion, and returns the exit status."""
    if name == COMPLETION:
        _complete(arguments, env, stdout)
        return ExitStatus.FINE
    parser = _build_parser()
    options = cli.parse(parser, arguments)
    if options.help or not options.command:
        parser.print_help(sys.stderr)
        return ExitStatus.USAGE
    if options.command not in COMMANDS:
        likely = nearest(options.command, COMMANDS)
        parser.error(one_line(f'there is no "{options.command}"' + (f'; did you mean "{likely}"?' if likely else "")))
    if not options.node:
        return cli.run([options.command, *options.words], env, stdout, plugins)
    try:
        signals.block()
        return _run_on_node(options, env, stdout)
    except (CniError, OSError) as error:
        print_error(error if isinstance(error, CniError) else internal(str(error)), Output(stdout))
        return ExitStatus.FAILED
    except Terminated:
        return ExitStatus.FAILED


def build_pod(name: str, options: Namespace, env: Mapping[str, str], stdout: TextIO) -> dict[str, object]:
    """Returns the manifest of the pod that runs the command."""
    mounts: list[dict[str, object]] = [
        {"name": volume, "mountPath": path, "readOnly": True, "mountPropagation": "HostToContainer"}
        for volume, path in _DIRECTORIES.items()
    ]
    volumes = [
        {"name": volume, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        for volume, path in _DIRECTORIES.items()
    ]
    columns = cli.get_width(env, stdout)
    container = {
        "name": "podwire",
        "image": options.image or env.get(IMAGE_VARIABLE) or IMAGE,
        "command": [options.podwire, options.command, *options.words],
        "env": [{"name": cli.COLUMNS_VARIABLE, "value": str(columns)}] if columns else [],
        "securityContext": {"privileged": True},
        "volumeMounts": mounts,
    }
    spec = {
        "nodeName": options.node,
        "hostNetwork": True,
        "hostPID": True,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": _DEADLINE_S,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": volumes,
    }
    labels = {"app.kubernetes.io/name": "podwire-debug"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def _build_parser() -> cli.Parser:
    parser = cli.Parser(
        prog="kubectl podwire",
        usage="kubectl podwire [--node NODE] [options] COMMAND ...",
        description=_ABOUT,
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("command", metavar="COMMAND", nargs="?", help=", ".join(COMMANDS))
    parser.add_argument("words", metavar="...", nargs=REMAINDER, help="the arguments of the command")
    parser.add_argument("--node", metavar="NODE", help="the node, as `kubectl get nodes` prints it")
    image = f"the pod's image, of which nothing is used (${IMAGE_VARIABLE}, or {IMAGE})"
    parser.add_argument("--image", metavar="IMAGE", help=image)
    parser.add_argument("--podwire", metavar="PATH", default=_PROGRAM, help=f"the tool on the node ({_PROGRAM})")
    namespace = f"the namespace of the pod ({_NAMESPACE})"
    parser.add_argument("--namespace", metavar="NAME", default=_NAMESPACE, help=namespace)
    for name in _PASSED_ON:
        parser.add_argument(f"--{name}", metavar="VALUE", help="kubectl's option")
    parser.add_argument("-h", "--help", action="store_true", help="print this help")
    return parser


def _run_on_node(options: Namespace, env: Mapping[str, str], stdout: TextIO) -> int:
    """Creates the pod, waits for its end, prints its output, and deletes it whatever happens."""
    name = f"podwire-debug-{os.urandom(5).hex()}"
    try:
        manifest = gojson.dumps(build_pod(name, options, env, stdout)).encode()
        _kubectl(options, env, "create", "-f", "-", stdin=manifest)
        status = _wait(name, options, env)
        stdout.write(_kubectl(options, env, "logs", name).decode("utf-8", "replace"))
        stdout.flush()
        return status
    finally:
        with signals.ignored():
            _delete(name, options, env)


def _delete(name: str, options: Namespace, env: Mapping[str, str]) -> None:
    """Deletes the pod, or prints the command that does."""
    try:
        _kubectl(options, env, "delete", "pod", name, "--ignore-not-found", "--wait=false")
    except (CniError, OSError):
        line = " ".join(["kubectl", *_passed_on(options), "delete pod", name])
        print(f"podwire: the pod may still be there: {line}", file=sys.stderr)


def _wait(name: str, options: Namespace, env: Mapping[str, str]) -> int:
    """Returns the exit status of the command; raises CniError if it does not start or does not end."""
    start = time.monotonic()
    while True:
        pod = gojson.loads(_kubectl(options, env, "get", "pod", name, "-o", "json"))
        phase, container = _status(pod)
        ended = container.get("terminated")
        if phase in _ENDED and isinstance(ended, dict):
            return int(ended.get("exitCode", ExitStatus.FAILED))
        waited = time.monotonic() - start
        reason = container.get("waiting")
        if phase in _ENDED or waited > (_RUN_S if "running" in container else _START_S):
            why = reason.get("reason", "") if isinstance(reason, dict) else phase
            msg = f"the pod {name} on {options.node} did not run: {why or 'no reason known'}"
            hint = "is the node's name right, and can it pull the image? --image names another"
            raise CniError(Code.TRY_AGAIN_LATER, msg, hint)
        with signals.unblocked():
            time.sleep(_POLL_S)  # kubectl has no way to wait for one of two phases


def _status(pod: object) -> tuple[str, Mapping[str, object]]:
    """Returns the phase of a pod and the state of its container."""
    status = pod.get("status") if isinstance(pod, dict) else None
    if not isinstance(status, dict):
        return "", {}
    listed = status.get("containerStatuses")
    first = listed[0] if isinstance(listed, list) and listed else {}
    state = first.get("state") if isinstance(first, dict) else None
    return str(status.get("phase", "")), state if isinstance(state, dict) else {}


def _kubectl(options: Namespace, env: Mapping[str, str], *words: str, stdin: bytes = b"") -> bytes:
    """Returns the output of kubectl; raises CniError with its message."""
    program = find_program("kubectl", env.get("PATH", ""))
    if not program:
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, "there is no kubectl on the PATH")
    line = (program, *_passed_on(options), *words)
    try:
        (outcome,) = child.run(child.ChildCommand(line, env, stdin, capture_stderr=True), limit_s=_CALL_S)
    except TimeoutError as error:
        raise CniError(Code.TRY_AGAIN_LATER, f"kubectl {words[0]}: {error.strerror}") from error
    if outcome.status:
        text = outcome.stderr.decode("utf-8", "replace").strip()
        raise internal(f"kubectl {words[0]}: {text or outcome.ending}")
    return outcome.stdout


def _passed_on(options: Namespace) -> list[str]:
    """Returns kubectl's own options."""
    values = {name: getattr(options, name) for name in (*_PASSED_ON, "namespace")}
    return [f"--{name}={value}" for name, value in values.items() if value]


def _complete(arguments: Sequence[str], env: Mapping[str, str], stdout: TextIO) -> None:
    """Prints the completions of the last word, and cobra's directive."""
    position = next((number for number, word in enumerate(arguments[:-1]) if word in COMMANDS), None)
    if position is None:
        tree = command_tree(_build_parser())
        matching = completions(tree, arguments, {"NODE": lambda: _list_nodes(env), "COMMAND": lambda: COMMANDS})
    else:
        matching = completions(command_tree(cli.build_parser()), arguments[position:], {})
    print(*matching, _NO_FILES, sep="\n", file=stdout)


def _list_nodes(env: Mapping[str, str]) -> list[str]:
    try:
        names = _kubectl(_build_parser().parse_args([]), env, "get", "nodes", "-o", "name").decode().split()
    except (CniError, OSError):
        return []
    return [name.removeprefix("node/") for name in names]
