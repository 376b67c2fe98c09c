"""Reading images in other processes: equal features, errors when a process dies, Ctrl-C and SIGTERM."""

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from fpp_sweep.core.images.reading import dead_process_as_machine_error, silence_lost_parent
from fpp_sweep.spec.errors import InputError, MachineError
from tests.core.images.caches import everything, files, fill
from tests.kit.datasets import Painter, painted_dataset


def test_the_global_random_stream_is_unchanged(tmp_path):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    fill(tmp_path, painted_dataset(3))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_features_are_the_same_bits_for_any_number_of_workers(tmp_path):
    dataset = painted_dataset(150, augmix=True)
    inline, _ = fill(tmp_path / "0", dataset, exact=True)
    for workers in (1, 2):
        parallel, log = fill(tmp_path / f"{workers}", dataset, exact=True, workers=workers)
        assert log.computed == 150
        assert torch.equal(everything(inline), everything(parallel))


@pytest.mark.nightly
@pytest.mark.slow
def test_a_bad_image_fails_a_run_with_workers_too(tmp_path):
    with pytest.raises(InputError, match=r"/images/66.png"):
        fill(tmp_path, painted_dataset(70, bad=frozenset({"66.png"})), workers=2)
    assert files(tmp_path, "*.lock") == []
    assert len(files(tmp_path)) == 1


# --- processes that die


class KillsItsProcess(Painter):
    """A source of images that kills the reading process at one image, as Linux does when memory runs out."""

    def image(self, sample_id):
        if sample_id == "66.png" and multiprocessing.parent_process():
            os.kill(os.getpid(), signal.SIGKILL)
        return Painter.image(self, sample_id)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_dead_reading_process_is_a_machine_error_and_the_run_can_be_repeated(tmp_path):
    dataset = dataclasses.replace(painted_dataset(70), source=KillsItsProcess())
    with pytest.raises(MachineError, match=r"^a process that reads images has died \(.+\); .*--set work.loaders=N"):
        fill(tmp_path, dataset, workers=2)
    assert files(tmp_path, "*.lock") == []
    for _ in range(3):  # torch's handler of dead processes must not raise when other processes end
        subprocess.run(["true"], check=True)
    # The first chunk of 64 images may have been finished before the process died.
    assert fill(tmp_path, painted_dataset(70), workers=1)[1].computed in (6, 70)


def test_a_dead_pinning_thread_is_a_machine_error():
    """The test raises torch's error itself, because no thread pins memory without a GPU."""
    shut_down = []
    views = SimpleNamespace(_shutdown_workers=lambda: shut_down.append(True))
    line = r"^a process that reads images has died \(Pin memory thread exited unexpectedly\); "
    with pytest.raises(MachineError, match=line), dead_process_as_machine_error(views):
        raise RuntimeError("Pin memory thread exited unexpectedly")
    assert shut_down


def test_a_reading_process_whose_parent_has_ended_prints_no_traceback(monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: printed.append(kind))
    silence_lost_parent(0)
    for error in (EOFError(), ConnectionResetError(), ValueError()):
        sys.excepthook(type(error), error, None)
    assert printed == [ValueError]


# --- Ctrl-C and SIGTERM


STARTS_A_CHILD = """
import multiprocessing, os, signal

def child(line):
    line.send("child was not interrupted")

if __name__ == "__main__":
    from fpp_sweep.core.images.reading import ctrl_c_for_parent_only

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background processes with SIGINT ignored
    context = multiprocessing.get_context("spawn")
    line, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs,))
    try:
        with ctrl_c_for_parent_only(1):
            process.start()
            theirs.close()
            os.kill(process.pid, signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            print("all started")
    except KeyboardInterrupt:
        print("interrupted")
    print(line.recv())
    process.join()
"""


@pytest.mark.nightly
@pytest.mark.slow  # starts two Python interpreters
def test_ctrl_c_while_processes_start_reaches_the_parent_after_they_have_started(tmp_path):
    (tmp_path / "starts.py").write_text(STARTS_A_CHILD)
    done = subprocess.run([sys.executable, tmp_path / "starts.py"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["all started", "interrupted", "child was not interrupted"]
    assert not done.stderr


READS_IN_A_PROCESS = """
import multiprocessing, os, signal, time

if __name__ == "__main__":
    from fpp_sweep.core.images.reading import read_views
    from fpp_sweep.spec.process import terminable

    with terminable():
        views = read_views(list(range(100)), range(100), workers=1, pin=False)
        next(views)
        (reader,) = multiprocessing.active_children()
        try:
            print("reads", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("interrupted")
        os.waitid(os.P_PID, reader.pid, os.WEXITED | os.WNOWAIT)  # so that torch's handler finds the ended process
        print("the reading process has ended")
"""


@pytest.mark.slow  # starts two Python interpreters
def test_sigterm_to_a_group_of_processes_interrupts_and_its_reading_processes_raise_nothing(tmp_path):
    """Batch systems signal the whole group; torch's handler raised an error for each process that ended."""
    (tmp_path / "reads.py").write_text(READS_IN_A_PROCESS)
    command = [sys.executable, tmp_path / "reads.py"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **streams) as process:
        assert process.stdout.readline() == "reads\n"
        os.killpg(process.pid, signal.SIGTERM)
        output, errors = process.communicate()
    assert output.splitlines() == ["interrupted", "the reading process has ended"], errors
    assert (process.returncode, errors) == (0, "")
