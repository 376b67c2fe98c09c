"""The script that completes the words of `fpp-sweep` in a shell: `fpp-sweep --completion bash`.

The script knows commands, flags, shipped spaces and the sweeps in `sweeps`; everything else is completed as a file.
Print it again after an update. To use it, add one of these lines to ~/.bashrc or ~/.zshrc:

    source <(fpp-sweep --completion bash)
    source <(fpp-sweep --completion zsh)
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from importlib import import_module

from fpp_sweep.cli.command import COMPLETION_FLAG
from fpp_sweep.space.shipped import shipped_spaces
from fpp_sweep.spec.errors import unknown

SHELLS = ("bash", "zsh")
ZSH = "autoload -U +X compinit && compinit -u\nautoload -U +X bashcompinit && bashcompinit\n"
SCRIPT = """\
_fpp_sweep() {
    local current="$2" previous="$3" command="${COMP_WORDS[1]}" words="" word folder
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="COMMANDS"
    elif [ "$previous" = --space ]; then
        words="SPACES"
    else
        case "$command" in
FLAGS
        esac
        case "$command" in
            show | import | compare | steer | sync)
                for folder in sweeps/* reproductions/*; do
                    case "${folder##*/}" in
                        *[!A-Za-z0-9_.-]*) ;;  # no name of a sweep; the shell would run parts of some names
                        *) words="$words ${folder##*/}" ;;
                    esac
                done ;;
        esac
    fi
    COMPREPLY=()
    for word in $words; do  # compgen -W would expand each word
        if [[ $word == "$current"* ]]; then
            COMPREPLY+=("$word")
        fi
    done
}
complete -o default -F _fpp_sweep fpp-sweep
"""


def completion_script(shell: str, modules: Mapping[str, str]) -> str:
    """Return the script for commands, given as module by name; zsh runs bash's through its own `bashcompinit`."""
    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    flags = []
    for command, module in modules.items():
        words = " ".join(words_of_command(module))
        flags.append(f'            {command}) words="{words}" ;;')
    script = SCRIPT.replace("COMMANDS", " ".join(modules))
    script = script.replace("SPACES", " ".join(shipped_spaces()))
    script = script.replace("FLAGS", "\n".join(flags))
    if shell == "zsh":
        return ZSH + script
    return script


def words_of_command(module: str) -> list[str]:
    """Return the flags and subcommands of the command in a module."""
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        import_module(module).main([COMPLETION_FLAG])
    return printed.getvalue().split()
