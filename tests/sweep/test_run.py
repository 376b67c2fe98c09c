"""Start, refusal, resuming and interruption of a sweep, without Ray; tests/test_tune.py runs with Ray."""

import signal
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import ENGINE_NAME
from fpp_sweep.spec.process import terminable
from fpp_sweep.spec.specs import PluginFile
from fpp_sweep.sweep.api import InterruptedSweep, Options, resumed_folder
from fpp_sweep.sweep.start import run_sweep
from fpp_sweep.trial.results import TaskFailed
from tests.kit.records import build_sweep, trial
from tests.kit.spaces import small_space
from tests.kit.stores import free_port


@pytest.fixture
def run_with(monkeypatch):
    """Return a function that runs a sweep without Ray until it loads its model, which `load_model` replaces."""

    def run(options, load_model, *, on_ray_start=lambda: None):
        @contextmanager
        def session(*_, **__):
            on_ray_start()
            yield

        def start_pool(worker, needs, tasks, **_):
            return SimpleNamespace(open=lambda: load_model(SweepFolder(tasks.parent)))

        monkeypatch.setattr("fpp_sweep.sweep.worker_pool.session", session)
        monkeypatch.setattr("fpp_sweep.workers.ray_session.machines_of_session", lambda: [{"CPU": 64.0}])
        monkeypatch.setattr("fpp_sweep.workers.actors.start_pool", start_pool)
        monkeypatch.setattr("fpp_sweep.sweep.worker_pool.open_store", lambda uri: None)
        run_sweep(small_space(), options)

    return run


def refuse(folder):
    raise TaskFailed("no such model")


def write_finished_sweep(root, name):
    """Write a finished sweep of the tests' space and return its folder."""
    folder = build_sweep(root / name, trials=1, failed_trials=(), report=False)
    folder.write_info(replace(folder.info(), space=small_space().plain(), engine=ENGINE_NAME))
    return folder


# ------------------------------------------------------------ refused and resumed


@pytest.mark.parametrize("trials", [0, 1])
def test_a_new_sweep_that_is_refused_is_removed_unless_it_has_trials(tmp_path, run_with, trials):
    def write_trials_and_refuse(folder):
        assert folder.info().state == "interrupted"  # until its inputs are checked
        for number in range(trials):
            folder.write_trial(trial(number))
        refuse(folder)

    with pytest.raises(InputError, match="no such model"):
        run_with(Options(root=tmp_path, name="new"), write_trials_and_refuse)
    left = sorted(path.name for path in tmp_path.rglob("*.json"))
    assert left == (["sweep.json", "trial-0000.json"] if trials else [])


def test_a_refusal_leaves_the_record_of_a_resumed_sweep(tmp_path, run_with):
    folder = write_finished_sweep(tmp_path, "old")
    before = folder.info()
    folder.send_command("set", ["search.trials=9"])
    with pytest.raises(InputError, match="no such model"):
        run_with(Options(root=tmp_path, name="old", resume=True), refuse)
    assert (before.state, folder.info()) == ("finished", before)


def test_without_a_name_the_sweep_that_was_begun_last_is_resumed(tmp_path, run_with):
    names = ("space-20261120-090000", "space-20270101-000000", "mine", "other-1", "evaluate-1")
    for day, name in enumerate(names):
        folder = write_finished_sweep(tmp_path, name)
        space = dict(folder.info().space)
        if name == "evaluate-1":
            space["search"] = {"evaluate_only": True}
        folder.write_info(replace(folder.info(), created=86_400.0 * day, space=space))
    assert resumed_folder(Options(root=tmp_path)).path.name == "other-1"
    assert resumed_folder(Options(root=tmp_path), evaluations=True).path.name == "evaluate-1"
    (tmp_path / "other-1" / "sweep.json").write_text("{")
    assert resumed_folder(Options(root=tmp_path)).path.name == "mine"
    resumed = []

    def look_and_refuse(folder):
        resumed.append(folder.path.name)
        refuse(folder)

    with pytest.raises(InputError, match="no such model"):  # a space file resumes a sweep that is named after it
        run_with(Options(root=tmp_path, resume=True), look_and_refuse)
    assert resumed == ["space-20270101-000000"]


def test_a_sweep_whose_plugin_is_missing_or_was_edited_is_not_resumed(tmp_path, run_with):
    folder = write_finished_sweep(tmp_path, "old")
    folder.write_info(replace(folder.info(), plugins={"angular": "0123"}))
    with pytest.raises(InputError, match="plugin angular: 0123 -> none"):
        run_with(Options(root=tmp_path, name="old", resume=True), refuse)
    assert folder.info().state == "finished"


@pytest.mark.usefixtures("no_plugins_left")
def test_a_sweep_loads_its_plugins_before_it_checks_them(tmp_path, run_with):
    file = PluginFile(name="mine", path="mine.py", text="x = 1 / 0", digest="m1")
    with pytest.raises(InputError, match=r"mine\.py.*division by zero"):
        run_with(Options(root=tmp_path, name="new", plugins=(file,)), refuse)


def test_a_store_that_cannot_be_reached_ends_a_sweep_before_ray_starts(tmp_path, run_with):
    options = Options(root=tmp_path, name="new", tracking_uri=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(InputError, match=r"cannot be used \(.*Connection refused\); start it"):
        run_with(options, refuse, on_ray_start=lambda: pytest.fail("starts Ray"))
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------ interrupted


@pytest.mark.parametrize("comes", ["while Ray starts", "while the model is loaded"])
def test_sigterm_interrupts_a_sweep_like_ctrl_c_even_if_ray_replaces_its_handler(tmp_path, run_with, comes):
    def handler_of_ray(*_):
        raise RuntimeError("Ray got the signal")

    def start_ray():
        if comes == "while Ray starts":
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is not handler_of_ray
        signal.signal(signal.SIGTERM, handler_of_ray)

    before = signal.signal(signal.SIGTERM, handler_of_ray)
    try:
        with pytest.raises(InterruptedSweep):
            run_with(
                Options(root=tmp_path, name="new"),
                lambda folder: signal.raise_signal(signal.SIGTERM),
                on_ray_start=start_ray,
            )
        assert signal.getsignal(signal.SIGTERM) is handler_of_ray
    finally:
        signal.signal(signal.SIGTERM, before)
    assert SweepFolder(tmp_path / "new").info().state == "interrupted"


def test_a_second_sigterm_does_not_disturb_the_clean_up_after_the_first():
    """SLURM sends a SIGTERM to every process of a job, and a second one when its time is up."""
    cleaned_up = False
    before = signal.getsignal(signal.SIGTERM)
    with terminable():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGTERM)
            cleaned_up = True
    assert cleaned_up
    assert signal.getsignal(signal.SIGTERM) is before
