"""What a sweep checks before it starts, and how it keeps its own record; with no Ray, which is in test_tune.py."""

import signal
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fpp_sweep.core.prompt import open_prompt, save_prompt
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import WorkTotals
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec import keys
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.process import terminable
from fpp_sweep.spec.specs import Validation
from fpp_sweep.sweep.api import Options, Sweep
from fpp_sweep.sweep.preflight import Opened, check, make_plan, require_named, with_facts, worker_spec
from fpp_sweep.sweep.run import Run, run_sweep
from fpp_sweep.trial.results import TaskFailed
from fpp_sweep.trial.worker import Worker
from fpp_sweep.workers.scheduler import SchedulerStatus
from tests.sweeps import baseline, build_sweep, sweep_info, trial

SPACE = "params: {fpp.gamma1: {low: 0.1, high: 10}}\nwork: {datasets: [scenes, digits], limit: 5}"


def space(*overrides):
    return parse_space(SPACE, "space.yaml", overrides)


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    asked = space(f"work.cache={tmp_path_factory.mktemp('cache')}")
    return Worker(worker_spec(asked, gpus=0.0))


@pytest.mark.parametrize(
    ("gpus", "cpus", "share"), [(1.0, 1, 1.0), (0.25, 1, 0.25), (2.0, 1, 1.0), (0.0, 1, 0.25), (0.0, 8, 1.0)]
)
def test_workers_share_the_memory_of_a_device_as_they_share_it(monkeypatch, gpus, cpus, share):
    monkeypatch.setattr("fpp_sweep.sweep.preflight.cores", lambda: 4)
    assert worker_spec(space(f"work.cpus_per_worker={cpus}"), gpus).share == share


@pytest.mark.parametrize("asked", ["base.precision=tf32", "params.precision=[float32, tf32]"])
def test_a_precision_that_workers_lack_is_refused_before_they_start(worker, asked):
    wanted = space(asked, "work.gpus_per_worker=0")
    line = "precision tf32: needs a GPU with compute capability 8.0 or later, this is a cpu; use float32"
    with pytest.raises(InputError, match=line):
        require_named(wanted, Options())
    require_named(wanted, Options(address="auto"))  # a cluster's may have it: they are asked when they start
    with pytest.raises(InputError, match=line):
        check(wanted, Worker(worker_spec(wanted, gpus=0.0)), make_plan(wanted, worker))


def test_a_precision_is_that_of_the_baselines_too():
    assert {config.precision for config in space("base.precision=fp16").baselines().values()} == {"fp16"}


def test_a_plan_holds_the_datasets_of_both_splits(worker):
    plan = make_plan(space(), worker)
    assert {split: [facts.name for facts in datasets] for split, datasets in plan.datasets.items()} == {
        "val": ["scenes", "digits"],
        "test": ["scenes", "digits"],
    }
    assert {facts.size for datasets in plan.datasets.values() for facts in datasets} == {5}
    assert plan.datasets["val"][0].digest != plan.datasets["test"][0].digest


def test_a_search_on_the_test_split_opens_no_other(worker):
    assert list(make_plan(space("search.split=test"), worker).datasets) == ["test"]


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("work.datasets=[scenes, scenez]", "did you mean 'scenes'"),
        ("work.datasets=[scenes, dtd]", "dtd: "),
        ("objectives=[{metric: ece/letters}]", "'letters'"),
        ("constraints=[{metric: accuracy/letters, at_least: 3}]", "'letters'"),
    ],
)
def test_a_dataset_that_is_not_there_is_told(worker, override, complaint):
    with pytest.raises(InputError) as error:
        make_plan(space(override), worker)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["base.anchor_prompt=nowhere.pt"], "nowhere.pt"),
        (["base.prompt=nowhere.safetensors"], "nowhere.safetensors"),
        (["params.prompt=[fpp, gone.pt]"], "gone.pt"),
        (["base.anchor_prompt=fpp"], "FPP needs words"),
        (["base.method=tpd"], "did you mean"),
    ],
)
def test_a_prompt_or_method_that_is_not_there_is_told(worker, overrides, complaint):
    def begin():
        asked = space(*overrides)
        check(asked, worker, make_plan(asked, worker))

    with pytest.raises(InputError) as error:
        begin()
    assert complaint in str(error.value)


class Recorded:
    """Notes which prompts are to be checked, each with its setting of `deep_prompts`."""

    def check(self, methods, prompts, datasets):
        self.prompts = prompts
        return Validation()


WORDS = ("a photo of a", "none")  # of the baselines
LINKED = "prompt, anchor_prompt, deep_prompts: [[fpp, m.pth, text], [fpp, a photo, none], [m.pth, x, both]]"


@pytest.mark.parametrize(
    ("searched", "expected"),
    [
        ("params: {fpp.gamma1: {low: 0.1, high: 10}}", {WORDS}),
        ("params: {fpp.gamma1: [1, 2]}\nbase: {anchor_prompt: m.pth, deep_prompts: text}", {("m.pth", "text")}),
        ("params: {prompt: [fpp, x.pt]}", {WORDS, ("x.pt", "none")}),
        (
            "params: {anchor_prompt: [m.pth, a photo],"
            " deep_prompts: {choices: [text, both], when: {anchor_prompt: m.pth}}}",
            {WORDS, ("m.pth", "text"), ("m.pth", "both"), ("a photo", "none")},
        ),
        (
            "params: {method: [tpt, otpt], deep_prompts: {choices: [text], when: {method: otpt}}}",
            {WORDS, ("a photo of a", "text")},
        ),
        (f"grid:\n- {LINKED}", {WORDS, ("m.pth", "text"), ("a photo", "none"), ("m.pth", "both")}),
    ],
)
def test_prompts_are_checked_as_trials_may_use_them(worker, searched, expected):
    asked, recorded = parse_space(f"{searched}\nwork: {{datasets: [scenes], limit: 5}}", "space.yaml", ()), Recorded()
    check(asked, recorded, make_plan(asked, worker))
    assert set(recorded.prompts) == expected


def test_words_that_the_embedded_model_never_saw_are_worth_a_note(worker):
    asked = space("base.anchor_prompt=quixotic zeppelins")
    (note,) = check(asked, worker, make_plan(asked, worker)).notes
    assert "quixotic" in note
    assert "never saw" in note


def test_a_sweep_goes_on_with_the_model_the_data_and_the_prompts_that_it_began_with(worker, tmp_path):
    file = tmp_path / "prompt.safetensors"
    asked = space(f"base.prompt={file}")
    model, plan = worker.facts(), make_plan(asked, worker)
    info = build_sweep(tmp_path / "made", trials=1).info()
    info = replace(info, model="")

    def opened(words, *, model=model, info=info):
        save_prompt(open_prompt(worker.clip, words), worker.clip, file, {})
        return with_facts(info, asked, model, plan, check(asked, worker, plan))

    began = opened("a photo of a")
    assert opened("a photo of a", info=began) == began
    with pytest.raises(InputError, match="a prompt file differs"):
        opened("a picture of a", info=began)
    with pytest.raises(InputError, match="tiny has other weights"):
        opened("a photo of a", info=began, model=replace(model, digest="another"))
    with pytest.raises(InputError, match="its data differ"):
        opened("a photo of a", info=replace(began, datasets={"scenes": "another", "digits": "another"}))


def test_a_sweeps_folder_is_read_as_a_table_and_a_front(tmp_path):
    sweep = Sweep.open(build_sweep(tmp_path / "made", trials=6, failed=(3,)).path)
    rows = {row["name"]: row for row in sweep.table()}
    assert len(rows) == len(sweep.trials())
    assert rows["trial-0003"]["state"] == "failed"
    assert "ece" not in rows["trial-0003"]
    members = sweep.front()
    assert members
    assert keys.of_config(sweep.best("knee")) in {member.key for member in members}
    with pytest.raises(InputError, match="has no 'best f1'; it has best accuracy"):
        sweep.best("best f1")


def test_what_is_no_sweep_is_not_opened(tmp_path):
    with pytest.raises(InputError, match="not a sweep's folder"):
        Sweep.open(tmp_path)


# ------------------------------------------------------------ begun, refused, resumed, interrupted


@pytest.fixture
def opened(monkeypatch):
    """Runs a sweep as far as its first worker, with which the test does something instead; there is no Ray."""

    def run(options, first_worker, *, ray=lambda: None):
        @contextmanager
        def session(*words, **named):
            ray()
            yield

        def start_pool(worker, needs, tasks, **named):
            return SimpleNamespace(open=lambda: first_worker(SweepFolder(tasks.parent)))

        monkeypatch.setattr("fpp_sweep.sweep.preflight.session", session)
        monkeypatch.setattr("fpp_sweep.sweep.preflight.gpus_here", lambda: 0.0)
        monkeypatch.setattr("fpp_sweep.workers.actors.start_pool", start_pool)
        monkeypatch.setattr("fpp_sweep.workers.actors.require_room", lambda *words, **named: None)
        monkeypatch.setattr("fpp_sweep.sweep.run.check_store", lambda uri: None)
        run_sweep(space(), options)

    return run


def refuses(folder):
    raise TaskFailed("no such model")


def ended(root, name):
    """A sweep of the space that has come to its end."""
    folder = build_sweep(root / name, trials=1, failed=(), report=False)
    folder.write_info(replace(folder.info(), space=space().plain()))
    return folder


@pytest.mark.parametrize("trials", [0, 1])
def test_a_new_sweep_that_is_refused_goes_unless_it_has_trials(tmp_path, opened, trials):
    def begins_and_refuses(folder):
        assert folder.info().state == "running"
        for number in range(trials):
            folder.write_trial(trial(number))
        refuses(folder)

    with pytest.raises(InputError, match="no such model"):
        opened(Options(root=tmp_path, name="new"), begins_and_refuses)
    assert sorted(path.name for path in tmp_path.rglob("*.json")) == ["sweep.json", "trial-0000.json"][: 2 * trials]


def test_a_resumed_sweep_runs_and_has_no_end_and_one_that_is_refused_is_as_it_was(tmp_path, opened):
    folder = ended(tmp_path, "old")
    before = folder.info()
    seen = []

    def looks_and_refuses(folder):
        seen.append(folder.info())
        refuses(folder)

    with pytest.raises(InputError, match="no such model"):
        opened(Options(root=tmp_path, name="old", resume=True), looks_and_refuses)
    assert [(info.state, info.finished, info.created) for info in seen] == [("running", None, before.created)]
    assert (before.state, folder.info()) == ("finished", before)


def test_the_last_sweep_of_the_space_is_the_one_that_is_resumed(tmp_path, opened):
    names = (
        "space-20261120-185232",
        "space-20270101-000000",
        "space-20261120-090000",
        "space-other",
        "other-29990101-000000",
    )
    for name in names:
        ended(tmp_path, name)
    seen = []

    def looks_and_refuses(folder):
        seen.append(folder.path.name)
        refuses(folder)

    with pytest.raises(InputError, match="no such model"):
        opened(Options(root=tmp_path, resume=True), looks_and_refuses)
    assert seen == ["space-20270101-000000"]


def test_a_sweep_whose_plugin_was_edited_or_is_missing_is_not_resumed(tmp_path, opened):
    folder = ended(tmp_path, "old")
    folder.write_info(replace(folder.info(), plugins={"angular": "0123"}))
    with pytest.raises(InputError, match="plugins: angular 0123 -> none; begin another"):
        opened(Options(root=tmp_path, name="old", resume=True), refuses)
    assert folder.info().state == "finished"


@pytest.mark.parametrize("ray_takes_it", [False, True])
def test_sigterm_interrupts_as_ctrl_c_does_whatever_ray_makes_of_it(tmp_path, opened, ray_takes_it):
    def deaf(*_):
        raise RuntimeError("nobody was interrupted")

    def take():
        assert signal.getsignal(signal.SIGTERM) is not deaf
        signal.signal(signal.SIGTERM, deaf)

    before = signal.signal(signal.SIGTERM, deaf)
    try:
        with pytest.raises(KeyboardInterrupt):
            opened(
                Options(root=tmp_path, name="new"),
                lambda folder: signal.raise_signal(signal.SIGTERM),
                ray=take if ray_takes_it else lambda: signal.raise_signal(signal.SIGTERM),
            )
        assert signal.getsignal(signal.SIGTERM) is deaf
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_sigterm_does_not_disturb_what_the_first_has_begun():
    """SLURM sends one to every process of a job, and another when their time is up."""
    in_order = False
    before = signal.getsignal(signal.SIGTERM)
    with terminable():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGTERM)
            in_order = True
    assert in_order
    assert signal.getsignal(signal.SIGTERM) is before


# ------------------------------------------------------------ under way


@pytest.fixture
def under_way(monkeypatch):
    """Makes a driver's own split of a sweep, before anything runs."""
    monkeypatch.setattr("fpp_sweep.search.study.SweepStudy", lambda *words: None)
    return lambda folder, asked: Run(asked, folder, Opened(None, None, 0.0), Options(), "sqlite:///none.db")


@pytest.mark.parametrize(
    ("objectives", "ends", "corner"),
    [
        ("[accuracy, ece]", [(60.0, 12.0), (55.0, 8.0)], (55.0, 12.0)),
        ("[accuracy, {metric: ece, reference: 100}]", [(60.0, 12.0), (55.0, 8.0)], (55.0, 100.0)),
        ("[accuracy, ece]", [(60.0, 12.0), "failed"], (60.0, 12.0)),
        ("[accuracy, ece]", [(60.0, 12.0), "running"], None),
        ("[accuracy, ece]", [(60.0, 12.0), "waiting"], None),
        ("[accuracy, ece]", [(60.0, 12.0), "interrupted"], None),  # --resume runs it again
        ("[accuracy, ece]", ["failed"], None),
    ],
)
def test_the_hypervolumes_corner_is_the_worst_of_the_baselines_unless_the_space_says(
    tmp_path, under_way, objectives, ends, corner
):
    asked = space(f"objectives={objectives}")
    folder = SweepFolder(tmp_path)
    folder.write_info(replace(sweep_info("sweep"), objectives=asked.objectives, reference=None))
    for place, end in enumerate(ends):
        changes = {"state": end, "values": None} if isinstance(end, str) else {"values": end}
        folder.write_trial(replace(baseline(f"number_{place}", place), **changes))
    under_way(folder, asked)._changed(folder.trial("baseline-number_0"), "val")
    reference = folder.info().reference
    assert corner == (reference and tuple(reference))


@pytest.mark.parametrize(
    ("wall_clock", "total", "finished", "running", "left"),
    [
        ("null", None, 0, 2, None),
        ("null", 10, 0, 2, None),  # nobody knows how long a trial takes
        ("1000", None, 0, 2, 850.0),  # this driver has worked for 100 s, and one before it for 50
        ("120", None, 0, 2, 0.0),
        ("null", 10, 3, 2, 90.0),  # six trials of 30 s, two at a time
        ("null", 10, 3, 0, 180.0),
        ("null", 5, 3, 4, 30.0),  # the last one, alone
        ("null", 4, 3, 0, 0.0),
        ("1000", 10, 3, 2, 90.0),
        ("160", 10, 3, 2, 10.0),
    ],
)
def test_the_time_left_is_what_budget_and_trials_leave(tmp_path, under_way, wall_clock, total, finished, running, left):
    folder = SweepFolder(tmp_path)
    folder.write_info(replace(sweep_info("sweep"), spent=50.0))
    run = under_way(folder, space(f"search.wall_clock={wall_clock}"))
    progress = run.conductor.progress
    progress.total, progress.finished, progress.failed = total, finished, 1 if finished else 0
    progress.seconds, progress.running = [20.0, 40.0, 30.0][:finished], set(map(str, range(running)))
    assert run._seconds_left(100.0) == left


def test_the_work_of_a_second_driver_is_added_to_that_of_the_first(tmp_path, under_way):
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info("sweep"))
    for expected in (WorkTotals(tasks=7, cached=5, model_loads=2, workers_lost=1),
                     WorkTotals(tasks=14, cached=10, model_loads=4, workers_lost=2)):  # fmt: skip
        run = under_way(folder, space())
        run.watch.status = SchedulerStatus(
            workers=2, loads=2, lost=1, pids=(1, 2), queued=0, running=0, done=7, at_hand=5, executions=8,
            images=70, held=9.0, fatal=None, notes=(),
        )  # fmt: skip
        run.watch.look = lambda: None
        run._end("interrupted")
        assert folder.info().work == expected
