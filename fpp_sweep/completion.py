"""Print a script that completes the words of `fpp-sweep` in a shell: `python -m fpp_sweep.completion bash`.

The script knows commands, flags, shipped spaces and the sweeps in `sweeps`; everything else is completed as a file.
Print it again after an update. To use it, add one of these lines to ~/.bashrc or ~/.zshrc:

    source <(fpp-sweep completion bash)
    source <(fpp-sweep completion zsh)
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module

from fpp_sweep.__main__ import COMMANDS, MODULES
from fpp_sweep.cli.command import LIST_WORDS, parser, run
from fpp_sweep.space.shipped import shipped_spaces

SHELLS = ("bash", "zsh")
ZSH = "autoload -U +X compinit && compinit -u\nautoload -U +X bashcompinit && bashcompinit\n"
SCRIPT = """\
_fpp_sweep() {
    local current="$2" previous="$3" command="${COMP_WORDS[1]}" words=""
    local sweeps="$(command ls sweeps 2>/dev/null) $(command ls reproductions 2>/dev/null)"
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="COMMANDS"
    elif [ "$previous" = --space ]; then
        words="SPACES"
    elif [ "$previous" = --points-from ]; then
        words="$sweeps"
    else
        case "$command" in
FLAGS
        esac
        case "$command" in
            show | compare | steer | sync) words="$words $sweeps" ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _fpp_sweep fpp-sweep
"""


def main(argv: Sequence[str] | None = None) -> None:
    print(completion_script(parse(argv).shell), end="")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.completion", __doc__ or "", usage="SHELL")
    options.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash or zsh")
    return options.parse_args(argv)


def completion_script(shell: str) -> str:
    """Return the script; zsh runs bash's through its own `bashcompinit`."""
    flags = "\n".join(f'            {command}) words="{" ".join(words_of(command))}" ;;' for command in COMMANDS)
    script = SCRIPT.replace("COMMANDS", " ".join(COMMANDS)).replace("SPACES", " ".join(shipped_spaces()))
    script = script.replace("FLAGS", flags)
    if shell == "zsh":
        return ZSH + script
    return script


def words_of(command: str) -> list[str]:
    """Return the flags and subcommands of a command."""
    module = import_module(f"fpp_sweep.{MODULES.get(command, command)}")
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        module.main([LIST_WORDS])
    return printed.getvalue().split()


if __name__ == "__main__":
    run(main)
