"""`podwire completion`: completion for a shell.

The shell's script only calls `podwire completion words`, which reads the current names of networks, pods and
network namespaces in a few milliseconds.
"""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence

from cni.errors import CniError
from kernel.netns import list_named
from podwire import attachments, networks
from podwire.command import CONF_DIR, CONF_DIR_VARIABLE, Command, Context, ExitStatus
from podwire.command_tree import command_tree, completions
from podwire.layers import CACHE_DIR, Layer, read_layers

_BASH = """\
_podwire() {
    mapfile -t COMPREPLY < <(podwire completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _podwire podwire
"""
_ZSH = """\
#compdef podwire
_podwire() {
    local -a found
    found=("${(@f)$(podwire completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -- "${found[@]}"; else _files; fi
}
if [[ "$funcstack[1]" = _podwire ]]; then _podwire; else compdef _podwire podwire; fi
"""
_FISH = """\
function __podwire_words
    set -l before (commandline -opc)
    set -l found (podwire completion words -- $before[2..-1] (commandline -ct) 2>/dev/null)
    if set -q found[1]
        string join \\n -- $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c podwire -f -a '(__podwire_words)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def _complete(context: Context, options: Namespace) -> ExitStatus:
    if options.what != "words":
        context.out.print_block(_SCRIPTS[options.what])
        return ExitStatus.FINE
    words = options.word[1:] if options.word[:1] == ["--"] else options.word
    directory = _option(words, "--conf-dir") or context.env.get(CONF_DIR_VARIABLE) or CONF_DIR
    sources = {
        "NETWORK": lambda: _networks(directory),
        "POD": lambda: _pods(read_layers(directory, [_option(words, "--cache-dir") or CACHE_DIR])),
        "NETNS": list_named,
        "PLUGIN": lambda: sorted(context.plugins),
        "COMMAND": lambda: [command.words.rpartition(" ")[2] for command in command_tree(context.parser).below],
    }
    for word in completions(command_tree(context.parser), words, sources):
        context.out.print(word)
    return ExitStatus.FINE


def _option(words: Sequence[str], name: str) -> str:
    """Returns the value of an option on the command line so far, "" without it."""
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word == name or word.startswith(f"{name}="):
            return word.partition("=")[2] or value
    return ""


def _networks(directory: str) -> list[str]:
    try:
        return [*networks.by_name(networks.read_directory(directory))]
    except CniError:
        return []


def _pods(layers: Sequence[Layer]) -> list[str]:
    """Returns the names of the pods in the caches, of those without a name their containers' IDs."""
    cached = (one for one in attachments.list_cached(layers) if not one.is_loopback)
    return sorted({one.pod or one.attachment.container_id for one in cached})


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="SHELL", choices=(*_SCRIPTS, "words"), help="bash, zsh or fish; `words` is for their scripts"
    )
    parser.add_argument("word", metavar="WORD", nargs=REMAINDER, help="the words of the command line so far, after --")


COMPLETION = Command(
    "completion",
    "completion for a shell",
    "Prints a script with which a shell completes commands, options, and the names of networks, pods\n"
    "and network namespaces of this node.",
    _complete,
    _arguments,
    (
        ("podwire completion bash > /etc/bash_completion.d/podwire", "for all users, from the next shell on"),
        ("source <(podwire completion bash)", "for this shell"),
        ("podwire completion zsh > /usr/local/share/zsh/site-functions/_podwire", "zsh"),
        ("podwire completion fish > /etc/fish/completions/podwire.fish", "fish"),
    ),
)
