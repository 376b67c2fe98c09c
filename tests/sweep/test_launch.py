"""The command that is printed after an interrupt or a failure: it begins the sweep, or continues it by its name."""

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.messages import runnable
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.launch import announced_folder
from fpp_sweep.sweep.resume_command import print_next_command
from tests.kit.records import sweep_info
from tests.kit.spaces import small_space


@pytest.mark.parametrize(
    ("words", "event", "has_begun", "title", "next_words"),
    [
        ("--space x.yaml", "interrupted", False, "interrupted before the sweep began; to begin:", "--space x.yaml"),
        ("--space x.yaml", "interrupted", True, "interrupted; to continue:", "--space x.yaml --name mine --resume"),
        ("--name mine", "stopped", False, "stopped before the sweep began; to begin:", "--name mine"),
        ("--name mine", "interrupted", True, "interrupted; to continue:", "--name mine --resume"),
        ("--name mine --resume", "stopped", True, "stopped; to continue:", "--name mine --resume"),
        ("--name=mine", "interrupted", True, "interrupted; to continue:", "--name=mine --resume"),
    ],
)
def test_the_end_of_a_run_prints_the_command_that_goes_on(tmp_path, capsys, words, event, has_begun, title, next_words):
    folder = SweepFolder(tmp_path / "mine")
    if has_begun:
        folder.write_info(sweep_info(name="mine"))
    print_next_command(folder, "tune", words.split(), event)
    assert capsys.readouterr().err.splitlines() == [title, f"    {runnable(f'fpp-sweep tune {next_words}')}"]


def test_a_resumed_sweep_is_announced_with_the_budget_in_force(tmp_path, capsys):
    folder = SweepFolder(tmp_path / "mine")
    folder.write_info(sweep_info(name="mine", state="interrupted", space=small_space("search.trials=4").plain()))
    folder.send_command("budget", {"trials": 9})
    folder.send_command("add", {"fpp.gamma1": 3.0})
    announced_folder(small_space("search.trials=4"), Options(root=tmp_path, name="mine", resume=True))
    assert "budget    10 trials" in capsys.readouterr().err.splitlines()
