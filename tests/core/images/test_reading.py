"""Reading images in other processes: equal features, errors when a process dies, Ctrl-C and SIGTERM."""

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fpp_sweep.core.images.features import FeatureCache
from fpp_sweep.spec.errors import InputError, MachineError
from tests.core.images.caches import CLIP, VIEWS, everything, files, fill
from tests.kit.datasets import Painter, painted_dataset

ROOT = Path(__file__).parents[3]


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
def test_a_dead_reading_process_is_a_machine_error_and_the_next_run_starts_others(tmp_path):
    cache = FeatureCache(tmp_path)
    dataset = dataclasses.replace(painted_dataset(70), source=KillsItsProcess())
    with pytest.raises(MachineError, match=r"^a process that reads images has failed .*--set work.loaders=N"):
        cache.features(CLIP, dataset, VIEWS, 0, workers=2)
    assert files(tmp_path, "*.lock") == []
    for _ in range(3):  # torch's handler of dead processes must not raise when other processes end
        subprocess.run(["true"], check=True)
    # The first chunk of 64 images may have been finished before the process died.
    assert cache.features(CLIP, painted_dataset(70), VIEWS, 0, workers=2).cost["images"] in (6, 70)


@pytest.mark.nightly
@pytest.mark.slow
def test_processes_serve_one_dataset_after_another(tmp_path):
    cache = FeatureCache(tmp_path)
    served_by = []
    for name in ("first", "second"):
        dataset = dataclasses.replace(painted_dataset(3), name=name)
        features = cache.features(CLIP, dataset, VIEWS, 0, workers=1)
        assert torch.equal(features.of(np.arange(3)), everything(fill(tmp_path / "inline", dataset)[0]))
        served_by.append({process.pid for process in multiprocessing.active_children()})
    assert served_by[0] == served_by[1]
    assert len(served_by[0]) == 1


# --- Ctrl-C and SIGTERM


READS_IN_A_PROCESS = """
import signal, time

if __name__ == "__main__":
    from fpp_sweep.core.images.reading import ImageLoader, Reader
    from fpp_sweep.spec.process import terminable
    from tests.core.images.caches import CLIP, VIEWS
    from tests.kit.datasets import painted_dataset

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background processes with SIGINT ignored
    dataset = painted_dataset(100)
    reader = Reader.of(dataset, VIEWS, CLIP.preprocess, 0)
    with terminable():
        try:
            views = ImageLoader(1, pin=False).read((reader, sample_id) for sample_id in dataset.ids)
            next(views)
            print("reads", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("interrupted")
"""


@pytest.mark.slow  # starts two Python interpreters
@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_a_signal_to_a_group_of_processes_interrupts_and_its_reading_processes_print_nothing(tmp_path, sent):
    """Terminals and batch systems signal the whole group; torch raises an error for each process that ends."""
    (tmp_path / "reads.py").write_text(READS_IN_A_PROCESS)
    command = [sys.executable, tmp_path / "reads.py"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, start_new_session=True, env=environment, **streams) as process:
        assert process.stdout.readline() == "reads\n"
        os.killpg(process.pid, sent)
        output, errors = process.communicate()
    assert output.splitlines()[-1:] == ["interrupted"], errors
    assert (process.returncode, errors) == (0, "")
