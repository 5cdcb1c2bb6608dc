"""`podwire version`: the files of the plugins, and the CNI versions that they support."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from cni import delegate, versions
from cni.errors import CniError, invalid_conf
from podwire import networks
from podwire.command import Command, Context, ExitStatus, add_options, bin_dirs, conf_dir
from podwire.output import Cell, Text, span
from podwire.verbs import origin
from podwire.verbs.invoke import PluginCall, PodArgs, environment, execute


def _version(context: Context, options: Namespace) -> ExitStatus:
    path = bin_dirs(context, options)
    names = options.plugin or _plugins_in_use(conf_dir(context, options))
    if not names:
        hint = "name plugins: podwire version bridge host-local"
        raise invalid_conf(f"there is no network in {conf_dir(context, options)}", hint)
    reports = [_inspect_plugin(context, name, path) for name in names]
    context.out.print_json(reports)
    context.out.print_table(("PLUGIN", "FILE", "CNI VERSIONS", "PROGRAM"), [_row(report) for report in reports])
    return ExitStatus.WRONG if any("error" in report for report in reports) else ExitStatus.FINE


def supported_versions(answer: object) -> list[str]:
    """Returns the versions in a plugin's answer to VERSION; [] if it has none."""
    listed = answer.get("supportedVersions") if isinstance(answer, Mapping) else None
    return [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []


def _row(report: Mapping[str, object]) -> tuple[Text, ...]:
    listed = report["versions"] if isinstance(report["versions"], list) else []
    end: Text = Cell(str(report["error"]), "bad") if "error" in report else str(report["program"])
    return (str(report["plugin"]), str(report["file"]), span(listed), end)


def _plugins_in_use(directory: str) -> list[str]:
    """Returns the plugins that the networks of a directory name, IPAM plugins among them."""
    listed = [file.network for file in networks.read_directory(directory) if file.network]
    return sorted({kind for network in listed for kind in network.kinds})


def _inspect_plugin(context: Context, name: str, path: tuple[str, ...]) -> dict[str, object]:
    """Runs one plugin's file with VERSION, then without CNI_COMMAND; returns the JSON report."""
    body: dict[str, object] = {"plugin": name, "file": "", "versions": [], "program": "", "podwire": False}
    try:
        body["file"] = program = delegate.find(name, path)
        env = environment("VERSION", PodArgs(), context.env, path)
        step = execute(PluginCall(name, "VERSION", {"cniVersion": versions.CURRENT}, env, path))
        body["versions"] = supported_versions(step.result)
        line = origin.about(program, env)
        body["program"] = line or "unknown"
        body["podwire"] = origin.is_podwire(line)
        if step.error:
            raise step.error
    except OSError as error:
        body["error"] = f"cannot be run: {error.strerror}"
    except CniError as error:
        body["error"] = error.msg
    return body


def _version_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("plugin", metavar="PLUGIN", nargs="*", help="name of a plugin (those that net.d names)")
    add_options(parser)


VERSION = Command(
    "version",
    "the plugins' files: path, vendor, CNI versions",
    "Prints for each plugin that net.d names, or that is named here, the file that a runtime would run, the CNI\n"
    "versions it supports, and what it prints about itself.\n\n"
    '--json: [{"plugin", "file", "versions", "program", "podwire", "error"}], "podwire" is true for podwire\'s own.',
    _version,
    _version_arguments,
    (("podwire version", "which plugins are podwire's, which are the reference plugins?"),),
)
