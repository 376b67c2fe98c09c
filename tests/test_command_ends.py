"""The end of a command: status, last line, and the processes that it started."""

import multiprocessing
import os
import subprocess
import sys
import time

import pytest

from fpp_sweep.cli import end_children, run
from tests.kit.waiting import LONG


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (MemoryError(), 1, "error: out of memory"),
        (MemoryError("4 GiB"), 1, "error: 4 GiB"),
        (FloatingPointError("loss is not finite"), 1, "error: loss is not finite"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_of_the_machine_is_one_line_with_a_status(capsys, error, status, line):
    def fail():
        raise error

    with pytest.raises(SystemExit) as exit_of_command:
        run(fail)
    assert exit_of_command.value.code == status
    assert capsys.readouterr().err == f"{line}\n"


def test_processes_that_read_images_are_killed():
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(LONG,))
    process.start()
    end_children()
    process.join()
    assert process.exitcode == -9


def test_an_encoding_without_a_character_shows_its_number(tmp_path):
    code = "from fpp_sweep.cli import run; run(lambda: print('caf\\xe9 \\U0001f600'))"
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("caf\\xe9 \\U0001f600\n", "")
