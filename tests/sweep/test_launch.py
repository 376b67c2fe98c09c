"""The command that is printed after an interrupt: it begins the sweep, or continues it by its name."""

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.messages import runnable
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.launch import announced_folder, print_next_command
from tests.kit.records import sweep_info
from tests.kit.spaces import small_space


@pytest.mark.parametrize(
    ("words", "has_begun", "title", "next_words"),
    [
        ("--space x.yaml", False, "interrupted before the sweep began; to begin:", "--space x.yaml"),
        ("--space x.yaml", True, "interrupted; to continue:", "--space x.yaml --name mine --resume"),
        ("--name mine", True, "interrupted; to continue:", "--name mine --resume"),
        ("--name mine --resume", True, "interrupted; to continue:", "--name mine --resume"),
    ],
)
def test_an_interrupt_prints_the_command_that_goes_on(tmp_path, capsys, words, has_begun, title, next_words):
    print_next_command(SweepFolder(tmp_path / "mine"), "tune", words.split(), has_begun=has_begun)
    assert capsys.readouterr().err.splitlines() == [title, f"    {runnable(f'fpp-sweep tune {next_words}')}"]


def test_a_resumed_sweep_is_announced_with_the_budget_in_force(tmp_path, capsys):
    folder = SweepFolder(tmp_path / "mine")
    folder.write_info(sweep_info(name="mine", state="interrupted", space=small_space("search.trials=4").plain()))
    folder.send_command("budget", {"trials": 9})
    folder.send_command("add", {"fpp.gamma1": 3.0})
    announced_folder(small_space("search.trials=4"), Options(root=tmp_path, name="mine", resume=True))
    assert "budget    10 trials" in capsys.readouterr().err.splitlines()
