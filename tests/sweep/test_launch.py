"""The command that is printed after an interrupt: it begins the sweep, or continues it by its name."""

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.messages import runnable
from fpp_sweep.sweep.launch import print_next_command


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
