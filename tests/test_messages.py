"""Commands in messages, as a shell reads them."""

import os
import shlex
import subprocess

import pytest

from fpp_sweep.spec.messages import command_line, runnable, runnable_record


@pytest.mark.parametrize("word", ["it's \\n", "$HOME caf\xe9", "a b"])
def test_a_printed_command_is_one_line_that_a_shell_reads_back(word):
    command = runnable(command_line("show", [word]))
    assert command.isprintable()
    last_word = ["bash", "-c", f'set -- {command}; printf %s "${{@: -1}}"']
    done = subprocess.run(last_word, capture_output=True, check=True)
    assert os.fsdecode(done.stdout) == word
    assert runnable_record(shlex.join(["fpp-sweep", "show", word])) == command


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("fpp-sweep tune --space s.yaml; touch /tmp/evil", "tune --space 's.yaml;' touch /tmp/evil"),
        ("../../evil $(touch /tmp/evil)", "../../evil '$(touch' '/tmp/evil)'"),
        ("fpp-sweep tune --name it's", "'fpp-sweep tune --name it'\"'\"'s'"),
        ("", ""),
    ],
)
def test_a_recorded_command_is_printed_so_that_a_shell_runs_nothing_else(recorded, shown):
    assert runnable_record(recorded).endswith(shown)
