"""Racing: decisions on made-up block statistics, and real trials on the embedded model that race."""

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from optuna.trial import TrialState

from benchmarks.racing import race, rungs_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import IMPOSSIBLE
from fpp_sweep.search.job import TrialContext, run_job
from fpp_sweep.search.racing import (
    MIN_SD,
    Contributions,
    Prediction,
    RacePolicy,
    RaceRules,
    RungMetrics,
    extrapolate_final,
    find_dominating,
    rung_ends,
    savings_text,
)
from fpp_sweep.search.searcher import SweepSearcher
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.space.objectives import Constraint, Objective
from fpp_sweep.space.reading import parse_space, space_of
from fpp_sweep.space.work import Race
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.statistics.block_stats import block_contributions, from_bytes, metric_value
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.plan import make_plan
from fpp_sweep.sweep.resume import load_for_resume, reopen_failed_trials
from fpp_sweep.tracking.desired import trial_run
from fpp_sweep.trial.trial import run_trial
from fpp_sweep.tune import parse
from tests.kit.measured import block_stats
from tests.kit.names import ZERO_SHOT, named
from tests.kit.records import split_result, sweep_info, trial
from tests.kit.tasks import dataset_info
from tests.kit.workers import executing

OBJECTIVES = ("accuracy", "ece")
Z = 2.3263  # the normal quantile for a confidence of 0.99
GOALS = ("max", "min")


# ------------------------------------------------------------ decisions


def rung_metrics(confidence, correct):
    """Return the metrics of a made-up trial on the images so far."""
    table = {}
    for name in confidence:
        table[name, 0] = block_stats(correct[name], confidence[name], dataset=name, nll=0.0, brier=0.0)
    return RungMetrics.of(table, OBJECTIVES)


def image_sets(generator, count):
    """Return four datasets of `count` images, each as the probability that a trial recognises the image."""
    return {f"set{number}": generator.uniform(0.25, 0.95, count) for number in range(4)}


def trial_on(images, generator, worse=0.0):
    """Return a random trial, over-confident by 8 points, that differs from other trials on about every tenth image."""
    shared = {name: np.random.default_rng(7).random(len(likely)) for name, likely in images.items()}
    right = {}
    for name, likely in images.items():
        own = generator.random(len(likely))
        chance = np.where(generator.random(len(likely)) < 0.1, own, shared[name])
        right[name] = chance < likely - worse
    return {name: np.clip(likely + 0.08, 0, 1) for name, likely in images.items()}, right


def final_values(trial):
    """Return a trial's values on all images."""
    metrics = rung_metrics(*trial).metrics
    return [metrics[name].value for name in OBJECTIVES]


def predict(own, finished, images, size):
    """Return predictions for a trial after `images` images of each dataset, and the finished trials' final values."""
    rungs = []
    for confidence, correct in (own, *finished):
        confidence_so_far = {name: rows[:images] for name, rows in confidence.items()}
        correct_so_far = {name: rows[:images] for name, rows in correct.items()}
        rungs.append(rung_metrics(confidence_so_far, correct_so_far))
    finals = np.array([final_values(trial) for trial in finished])
    predictions = []
    for column, name in enumerate(OBJECTIVES):
        rivals = [rung.metrics[name] for rung in rungs[1:]]
        predictions.append(extrapolate_final(rungs[0].metrics[name], rivals, finals[:, column], 1 - images / size))
    return predictions, finals


def simulate_races(worse, count, rounds=60, size=1000, blocks=(64, 128, 256, 512)):
    """Return the share of races that stop a trial with three rivals, and the share that stop it wrongly."""
    stopped = wrong = 0
    for seed in range(rounds):
        generator = np.random.default_rng([seed, count])
        images = image_sets(generator, size)
        own, *finished = (trial_on(images, generator, less) for less in (worse, 0.0, 0.0, 0.0))
        for block in blocks:
            predictions, finals = predict(own, finished, block, size)
            if find_dominating(predictions, finals, GOALS, Z):
                stopped += 1
                leads = (finals - final_values(own)) * [1, -1]
                is_beaten_on_all_images = (leads > 0).all(axis=1).any()
                wrong += not is_beaten_on_all_images
                break
    return stopped / rounds, wrong / rounds


@pytest.mark.nightly
@pytest.mark.slow  # hundreds of simulated races
def test_a_stopped_trial_would_have_been_beaten_on_all_images():
    """Among four equally good trials one is often beaten on all images, by chance; races rarely stop others."""
    stopped, wrong = simulate_races(0.0, 1)
    assert stopped > 0
    assert wrong <= 0.05
    stopped, wrong = simulate_races(0.01, 12)
    assert stopped > 0.4
    assert wrong <= 0.05


def test_a_trial_that_is_worse_by_three_points_is_stopped_by_half_of_its_1000_images():
    stopped, wrong = simulate_races(0.03, 2, rounds=20)
    assert stopped > 0.9
    assert wrong == 0


def test_errors_of_predictions_match_their_standard_deviation():
    errors = []
    for seed in range(40):
        generator = np.random.default_rng([seed, 3])
        images = image_sets(generator, 512)
        own, *finished = (trial_on(images, generator, generator.uniform(0, 0.1)) for _ in range(6))
        predictions, _ = predict(own, finished, 128, 512)
        standardized = []
        for prediction, truth in zip(predictions, final_values(own), strict=True):
            standardized.append((prediction.value - truth) / prediction.sd)
        errors.append(standardized)
    assert np.abs(np.mean(errors, axis=0)).max() < 0.5
    assert 0.7 < np.std(errors, axis=0).min() <= np.std(errors, axis=0).max() < 1.6


def contributions(value, noise):
    """Return a metric's contributions: one block for each entry of `noise`."""
    return Contributions([value / len(noise) + noise - noise.mean()])


NOISE = np.random.default_rng(0).normal(0, 0.1, (10, 64))


def test_a_value_is_predicted_from_the_trials_that_differ_least():
    own = contributions(60.0, NOISE[0])
    rivals = [
        contributions(70.0, NOISE[1]),
        contributions(50.0, NOISE[0] + 0.001 * NOISE[1]),
        contributions(55.0, NOISE[2]),
    ]
    prediction = extrapolate_final(own, rivals, np.array([0.0, 48.0, 0.0]), 1.0)
    assert prediction.value == pytest.approx(48 + 10, abs=0.01)
    assert prediction.sd == pytest.approx(rivals[1].minus(own).sd, rel=0.01)


def test_several_equally_near_rivals_predict_better_than_one():
    own, *rivals = (contributions(60.0, noise) for noise in NOISE)
    prediction = extrapolate_final(own, rivals, np.full(9, 61.0), 1.0)
    alone = extrapolate_final(own, rivals[:1], np.array([61.0]), 1.0)
    assert prediction.value == pytest.approx(61.0)
    assert prediction.sd < 0.95 * alone.sd


def test_only_unseen_images_add_uncertainty():
    own, rival = contributions(60.0, NOISE[0]), contributions(61.0, NOISE[1])
    all_left, half_left, none_left = (extrapolate_final(own, [rival], np.array([61.0]), left) for left in (1, 0.5, 0))
    assert half_left == Prediction(all_left.value, pytest.approx(all_left.sd / np.sqrt(2)))
    assert none_left == Prediction(pytest.approx(60.0), MIN_SD)


def test_a_calibration_error_is_predicted_to_fall_for_a_calibrated_trial():
    """A quarter of the images shows twice the error that a calibrated model has on all images."""
    blocks = np.full(8, 1.0)
    calibrated = Contributions([blocks], calibrated_bias=8.0)
    far = Contributions([blocks])
    prediction = extrapolate_final(calibrated, [far], np.array([8.0]), 0.75)
    assert prediction.value == pytest.approx(4.0)
    assert prediction.sd == pytest.approx(2.0)  # half of the bias that goes
    both = extrapolate_final(calibrated, [calibrated], np.array([4.0]), 0.75)
    assert both.value == pytest.approx(4.0)
    assert extrapolate_final(far, [far], np.array([8.0]), 0.75).sd < 0.01


@pytest.mark.parametrize(("over_confidence", "is_near"), [(0.0, True), (0.3, False)])
def test_only_trials_near_calibration_have_the_bias_of_a_calibrated_one(over_confidence, is_near):
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.4, 0.95, 400)
    stats = block_stats(generator.random(400) < confidence - over_confidence, confidence, dataset="dtd")
    rung = RungMetrics.of({("dtd", 0): stats}, ["accuracy", "ece"])
    assert (rung.metrics["ece"].calibrated_bias > 1) == is_near
    assert rung.metrics["accuracy"].calibrated_bias == 0.0


def test_a_dominating_rival_is_ahead_in_every_objective():
    own = [Prediction(60.0, 1.0), Prediction(10.0, 1.0)]
    assert find_dominating(own, np.array([[70.0, 14.0], [55.0, 2.0]]), GOALS, Z) is None
    assert find_dominating(own, np.array([[70.0, 4.0], [55.0, 2.0]]), GOALS, Z) == (0, [10.0, 6.0])
    assert find_dominating(own, np.array([[63.0, 4.0], [64.0, 2.0]]), GOALS, Z) == (
        1,
        [4.0, 8.0],
    )  # the rival with the clearer lead
    assert find_dominating(own[:1], np.array([[62.4], [62.0]]), ["max"], Z) == (0, [pytest.approx(2.4)])
    assert find_dominating(own, np.zeros((0, 2)), GOALS, Z) is None
    undefined = [Prediction(math.nan, 1.0), own[1]]
    assert find_dominating(undefined, np.array([[70.0, 4.0]]), GOALS, Z) is None


@pytest.mark.parametrize(("deviation", "stopped"), [(1.0, True), (1.6, False)])
def test_a_lead_within_the_noise_stops_no_trial(deviation, stopped):
    assert bool(find_dominating([Prediction(60.0, deviation)], np.array([[63.5]]), ["max"], Z)) is stopped


def test_a_rival_must_be_ahead_in_all_of_three_objectives():
    own, goals = [Prediction(60.0, 1.0), Prediction(10.0, 1.0), Prediction(0.5, 0.01)], ["max", "min", "min"]
    assert find_dominating(own, np.array([[80.0, 2.0, 0.4]]), goals, Z)
    assert find_dominating(own, np.array([[80.0, 2.0, 0.6]]), goals, Z) is None


def test_a_lead_of_three_images_dominates_no_trial():
    likely = {"set0": np.full(64, 0.6)}
    right = np.arange(64) < 40
    better = right | (np.arange(64) >= 61)
    own, rival = (rung_metrics(likely, {"set0": correct}).metrics["accuracy"] for correct in (right, better))
    finals = np.array([rival.value])
    prediction = extrapolate_final(own, [rival], finals, 1.0)
    assert find_dominating([prediction], finals[:, None], ["max"], 1.96) is None


@pytest.mark.parametrize("metric", ["accuracy", "ece", "smooth_ece", "nll", "brier"])
def test_contributions_of_blocks_sum_to_the_metric(metric):
    generator = np.random.default_rng(1)
    confidence = generator.uniform(0.2, 1, 300).astype(np.float32)
    correct = generator.random(300) < 0.6
    nll, brier = generator.random((2, 300))
    stats = block_stats(correct, confidence, nll=nll, brier=brier)
    assert block_contributions(metric, stats).sum() == pytest.approx(metric_value(metric, stats))


def test_a_metric_of_several_datasets_and_seeds_is_their_mean():
    stats = {}
    for number, key in enumerate([("digits", 0), ("digits", 1), ("scenes", 0), ("scenes", 1)]):
        stats[key] = random_block_stats(seed=number)
    values = {key: metric_value("ece", of_run) for key, of_run in stats.items()}
    rung = RungMetrics.of(stats, ["ece", "ece/scenes"])
    assert rung.metrics["ece"].value == pytest.approx(np.mean(list(values.values())))
    assert rung.metrics["ece/scenes"].value == pytest.approx((values["scenes", 0] + values["scenes", 1]) / 2)


def random_block_stats(seed):
    generator = np.random.default_rng(seed)
    return block_stats(generator.random(300) < 0.6, generator.uniform(0.2, 1, 300).astype(np.float32))


# ------------------------------------------------------------ rungs and rules


def datasets_of_sizes(**sizes):
    return [dataset_info(name, size=size) for name, size in sizes.items()]


@pytest.mark.parametrize(
    ("size", "ends"),
    [(1000, (64, 128, 256, 512)), (200, (64, 128)), (5000, (320, 640, 1280, 2560)), (129, (64, 128)), (70, (64,))],
)
def test_rungs_are_whole_batches(size, ends):
    assert rung_ends(Race(), datasets_of_sizes(one=size)) == {("one", "val"): ends}


def test_all_datasets_have_the_same_number_of_rungs():
    decision = rung_ends(Race(), datasets_of_sizes(large=1000, small=40, middle=200))
    assert decision == {
        ("large", "val"): (64, 128, 256, 512),
        ("small", "val"): (40, 40, 40, 40),
        ("middle", "val"): (64, 64, 64, 128),
    }


@pytest.mark.parametrize(
    ("race", "sizes", "message"),
    [
        (Race(), {"one": 64}, "search.race: one has 64 images in split val, and a race needs more than 64; raise"),
        (
            Race(rungs=tuple(n / 301 for n in range(1, 301))),
            {"one": 200},
            "search.race.rungs: 301 rungs of 200 images; give fewer",
        ),
    ],
)
def test_datasets_without_enough_images_for_the_rungs_are_refused(race, sizes, message):
    with pytest.raises(InputError, match=message):
        rung_ends(race, datasets_of_sizes(**sizes))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["search.race.confidence=0.5"], "search.race.confidence: must be above 0.5 and below 1 (0.5)"),
        (["search.race.confidence=1"], "search.race.confidence: must be above 0.5 and below 1 (1.0)"),
        (["search.race.rungs=[]"], "search.race.rungs: must have at least 1 entry (none)"),
        (["search.race.rungs=[1/2, 1/4]"], "search.race.rungs: must rise"),
        (["search.race.rungs=[3/2]"], "search.race.rungs.0: must be a number above 0 and below 1, such as 1/16 ("),
        (["search.race.rungs=[x]"], "search.race.rungs.0: must be a number above 0 and below 1, such as 1/16 ('x')"),
        (["search.race.rung=[1/2]"], "search.race: unknown key 'rung', did you mean 'rungs'?"),
        (["search.race.reserve=0"], "search.race.reserve: must be >= 1 (0)"),
        (["search.race=7"], "search.race: must be a mapping"),
        (["objectives=[accuracy, seconds]"], "search.race: seconds cannot be predicted from a part of the images"),
        (["constraints=[{metric: mce, at_most: 30}]"], "search.race: mce cannot be predicted from a part of"),
        (["base.method=dynaprompt"], "search.race: dynaprompt learns from sample to sample, and a part of its stream"),
        (["work.baselines=[dynaprompt]"], "search.race: dynaprompt learns from sample to sample"),
        (["search.patience=0"], "search.patience: must be >= 1 (0)"),
        (
            ["search.patience=5", "work.baselines=[]"],
            "search.patience: hypervolume has no corner: there are no baselines, and accuracy has no reference",
        ),
    ],
)
def test_wrong_settings_of_a_race_are_reported_in_one_line(overrides, message):
    with pytest.raises(InputError) as caught:
        parse_space(SPACE, "space.yaml", overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_short_forms_of_a_race_are_read():
    def race(value):
        return parse_space(SPACE, "space.yaml", [f"search.race={value}"]).search.race

    assert race("true") == race("{}") == Race()
    assert race("false") is race("null") is None
    assert race("{rungs: [1/4, 0.5], reserve: 3}") == Race(rungs=(0.25, 0.5), reserve=3)
    space = parse_space(SPACE, "space.yaml")
    assert space_of(space.plain(), "space").search == space.search
    assert space.difference(parse_space(SPACE, "space.yaml", ["search.race.reserve=3"])) == [
        "search.race.reserve: 2 -> 3"
    ]


def test_continue_trials_needs_resume():
    with pytest.raises(InputError, match="--continue-trials: needs --resume"):
        parse(["--space", "space.yaml", "--continue-trials", "trial-0001"])


# ------------------------------------------------------------ trials that race

# two trials with good learning rates, and four with learning rates that ruin the prompt
SPACE = named("""
base: {method: tpt, prompt: a photo of a, views.count: 4, adapt.view_fraction: 0.5}
params: {adapt.lr: {low: 0.0001, high: 2.0}}
points: [{adapt.lr: 0.003}, {adapt.lr: 0.005}]
objectives: [accuracy, ece]
search: {trials: 6, concurrency: 1, sampler: random, race: {rungs: [1/3, 2/3], reserve: 2}}
work: {datasets: [digits, scenes], limit: 192, baselines: [zero_shot]}
""")


@pytest.fixture(scope="module")
def worker(make_worker):
    return make_worker(limit=192)


class Sweep:
    """A searcher whose trials run in this process, without Ray Tune."""

    def __init__(self, path, worker, *overrides, continue_trials=()):
        self.space = parse_space(SPACE, "space.yaml", overrides)
        self.folder = SweepFolder(path)
        if not self.folder.info_file.exists():
            info = sweep_info(name="sweep", state="running")
            self.folder.write_info(replace(info, space=self.space.plain(), objectives=self.space.objectives))
        self.plan = make_plan(self.space, worker)
        self.worker = worker
        self.study = SweepStudy(self.folder.study_file, "sweep", self.space, records=self.folder.trials())
        self.searcher = SweepSearcher(
            self.space,
            self.folder,
            self.study,
            plan=self.plan,
            poller=SimpleNamespace(status=SimpleNamespace(workers=1, fatal=None)),
            gpus_per_worker=0.0,
            continue_trials=continue_trials,
        )
        self.searcher.prepare_jobs()

    def run(self, *, stop_at=None, left=0):
        """Run the search to its end, or kill the trial `stop_at` when it receives result number `left`."""
        with executing("inline", self.worker, self.plan, self.folder.tasks) as executor:
            context = TrialContext(
                folder=self.folder,
                executor=KilledExecutor(executor) if stop_at else executor,
                plan=self.plan,
                objectives=self.space.objectives,
                constraints=self.space.constraints,
                search_split="val",
                race=self.space.search.race,
            )
            while True:
                job = self.searcher.suggest("t")
                if not isinstance(job, dict) or job["split"] != "val":
                    break
                if isinstance(context.executor, KilledExecutor):
                    context.executor.left = left if job["name"] == stop_at else -1
                run_job(context, job["name"], "val", job["order"])
                self.searcher.on_trial_complete("t", {"done": True, "pid": 1})
        return self

    def records(self):
        return {record.name: record for record in self.folder.trials()}

    def study_trials(self):
        trials = self.study._study.get_trials()
        return [(trial.state, trial.values, trial.user_attrs.get("fidelity"), trial.params) for trial in trials]

    def decisions(self):
        return read_decisions(self.folder)


def read_decisions(folder):
    files = folder.path.glob("race/*/decisions.json")
    return {path.parent.name: json.loads(path.read_text())["decisions"] for path in files}


class Killed(BaseException):
    pass


class KilledExecutor:
    """An executor that raises Killed instead of its result number `left`, as if its process were killed."""

    def __init__(self, executor):
        self.executor, self.left = executor, -1

    def results(self, tasks, order=0):
        for result in self.executor.results(tasks, order):
            self.left -= 1
            if self.left == 0:
                raise Killed
            yield result


@pytest.fixture(scope="module")
def raced_sweep(worker, tmp_path_factory):
    return Sweep(tmp_path_factory.mktemp("raced") / "sweep", worker).run()


def stopped_records(sweep):
    return [record for record in sweep.records().values() if record.state == "stopped"]


def test_trials_that_are_not_beaten_finish_with_the_results_of_a_sweep_without_a_race(raced_sweep, worker, tmp_path):
    records = raced_sweep.records()
    finished = [record for record in records.values() if record.state == "complete"]
    assert [record.name for record in finished] == [f"baseline-{ZERO_SHOT}", *(f"trial-{n:04d}" for n in range(3))]
    plan = replace(raced_sweep.plan, rung_ends={})
    with executing("inline", worker, plan, tmp_path) as executor:
        for record in finished:
            result, _ = run_trial(plan, TrialConfig().replace(record.config), "val", executor)
            for name in ("average", "datasets"):
                assert getattr(record.results["val"], name) == getattr(result, name), record.name


def test_a_trial_that_is_beaten_is_stopped_and_reported_as_an_estimate(raced_sweep):
    losers = stopped_records(raced_sweep)
    assert [record.name for record in losers] == ["trial-0003", "trial-0004", "trial-0005"]
    decisions, study = raced_sweep.decisions(), raced_sweep.study._study.get_trials()
    info = raced_sweep.folder.info()
    for record in losers:
        (decision,) = decisions[record.name]
        assert (record.values, record.results, record.finished >= record.started) == (None, {}, True)
        assert (record.fidelity, record.estimate) == (1 / 3, decision["estimate"])
        assert record.reason == decision["reason"]
        assert record.reason.endswith(" in ece, after 33% of the images")
        trial = study[record.number]
        assert (trial.state, trial.values) == (TrialState.COMPLETE, record.estimate)
        assert trial.user_attrs["fidelity"] == "0.3333"
        assert trial_run(info, record).metrics == pytest.approx(
            {"fidelity": 1 / 3, "estimate/accuracy": record.estimate[0], "estimate/ece": record.estimate[1]}, rel=1e-5
        )
    assert "fidelity" not in study[0].user_attrs
    assert not {record.name for record in raced_sweep.searcher.front()} & set(names_of_stopped_trials(raced_sweep))
    line = savings_text(list(raced_sweep.records().values()), "val")
    assert line.startswith("3 of 6 trials stopped early; that saved 33% of adaptation, ")
    assert raced_sweep.searcher.gpu_hours() * 3600 > sum(record.seconds_without_result for record in losers) > 0


def names_of_stopped_trials(sweep):
    return [name for name, decisions in sweep.decisions().items() if decisions[-1]["reason"]]


def test_differences_between_shared_seeds_add_no_uncertainty():
    """One trial is better by 20 points with the first seed and worse by 20 with the second; their means are equal."""
    first, second = (np.arange(200) % 10 < tenths for tenths in (6, 8))
    metrics = []
    for correct_by_seed in ((first, second), (second, first)):
        table = {}
        for seed, correct in enumerate(correct_by_seed):
            table["a", seed] = block_stats(correct, dataset="a")
        metrics.append(RungMetrics.of(table, ["accuracy"]).metrics["accuracy"])
    assert [metric.value for metric in metrics] == pytest.approx([70, 70])
    assert metrics[0].minus(metrics[1]).sd == pytest.approx(np.sqrt(2) * 100 / 200)  # from the two pseudo-images alone


def test_several_seeds_race_together(worker, tmp_path):
    sweep = Sweep(tmp_path / "sweep", worker, "work.seeds=[0, 1]", "work.datasets=[digits]").run()
    losers = stopped_records(sweep)
    assert losers
    for record in losers:
        block_sums = from_bytes((sweep.folder.race(record.name) / "rung-1.npz").read_bytes())
        assert {key: stats.total for key, stats in block_sums.items()} == {("digits", 0): 64, ("digits", 1): 64}
        (decision,) = sweep.decisions()[record.name]
        assert (decision["share"], len(decision["estimate"])) == (1 / 3, 2)


def predictions(raced_sweep, worker, record):
    """Return the predictions of a trial on all its images."""
    with executing("inline", worker, raced_sweep.plan, raced_sweep.folder.tasks) as executor:
        return run_trial(raced_sweep.plan, TrialConfig().replace(record.config), "val", executor)[1]


def test_the_estimate_lies_between_the_estimates_from_single_rivals(raced_sweep, worker):
    loser = stopped_records(raced_sweep)[0]
    (decision,) = raced_sweep.decisions()[loser.name]
    winner = raced_sweep.folder.trial(decision["rival"])
    assert decision["leads"] == pytest.approx(np.subtract(winner.values, loser.estimate) * [1, -1], abs=1e-9)
    finished = [record for record in raced_sweep.records().values() if record.state == "complete"]
    assert len(finished) == 4  # three of them are near the loser
    values_so_far = []
    for record in (*finished, loser):
        parts = predictions(raced_sweep, worker, record)
        accuracy = [100 * part.predictions.correct[:64].mean() for part in parts]
        errors = [metric_value("ece", stats_of_first_images(part, 64)) for part in parts]
        values_so_far.append((np.mean(accuracy), np.mean(errors)))
    finals = [[record.results["val"].average[name] for name in OBJECTIVES] for record in finished]
    # the estimate from one rival: its final values minus its lead on the shared images
    estimates = np.array(finals) - np.array(values_so_far[:-1]) + values_so_far[-1]
    assert (estimates.min(axis=0) < loser.estimate).all()
    assert (estimates.max(axis=0) > loser.estimate).all()


def stats_of_first_images(part, images, size=0):
    rows = part.predictions
    return block_stats(
        rows.correct[:images],
        rows.confidence[:images],
        dataset=part.dataset.name,
        ids=rows.ids[:images],
        nll=rows.nll[:images],
        brier=rows.brier[:images],
        size=size,
    )


def test_the_benchmark_of_racing_makes_the_decisions_of_the_real_race(raced_sweep, worker):
    """The benchmark gets the predictions on all images, as a sweep without a race writes them."""
    trials = [record for record in raced_sweep.records().values() if record.kind == "trial"]
    pool = {}
    for record in trials:
        for part in predictions(raced_sweep, worker, record):
            pool.setdefault(part.dataset.name, []).append(
                stats_of_first_images(part, len(part.predictions.ids), size=1)
            )
    finals = np.array([record.values or (np.nan, np.nan) for record in trials])
    rules = raced_sweep.space.search.race
    sizes = {dataset: len(stats[0]) for dataset, stats in pool.items()}
    stopped_at = race(pool, finals, rungs_of(sizes, rules), rules)
    assert stopped_at == dict.fromkeys((3, 4, 5), 128)


def decide_after_first_block(raced_sweep, name="trial-0003", *, changes=None, **rules):
    """Return a trial's decision after its first rung, with changes to some records and under other rules."""
    folder = SweepFolder(raced_sweep.folder.path)
    defaults = {"race": Race(reserve=2), "objectives": raced_sweep.space.objectives, "constraints": (), "split": "val"}
    changes = changes or {}
    before = {changed: folder.trial(changed) for changed in changes}
    try:
        for changed, change in changes.items():
            folder.write_trial(replace(before[changed], **change))
        policy = RacePolicy(RaceRules(**{**defaults, **rules}), folder, folder.trial(name))
        policy._rung, policy._sizes = 1, {"digits": 192, "scenes": 192}
        return policy._compared(policy._rung_of(name), 0.25)
    finally:
        for record in before.values():
            folder.write_trial(record)


def test_no_trial_is_stopped_before_the_reserve_has_finished(raced_sweep):
    assert decide_after_first_block(raced_sweep, race=Race(reserve=3)).rival == "trial-0001"
    assert decide_after_first_block(raced_sweep, race=Race(reserve=4)).reason is None


@pytest.mark.parametrize("change", [{"state": "failed"}, {"state": "running"}, {"state": "stopped"}])
def test_a_race_compares_with_finished_trials_only(raced_sweep, change):
    changes_of_all_rivals = {f"trial-{number:04d}": change for number in (0, 1, 2)}
    decision = decide_after_first_block(raced_sweep, changes=changes_of_all_rivals, race=Race(reserve=1))
    assert (decision.rival, decision.reason) == ("", None)
    second = decide_after_first_block(raced_sweep, changes={"trial-0001": change})
    assert second.rival in ("trial-0000", "trial-0002")


def test_a_race_compares_with_trials_on_the_same_images_only(raced_sweep, monkeypatch):
    folder = raced_sweep.folder
    rules = RaceRules(race=Race(reserve=2), objectives=raced_sweep.space.objectives, constraints=(), split="val")
    policy = RacePolicy(rules, folder, folder.trial("trial-0003"))
    policy._rung, policy._sizes = 1, {"digits": 192, "scenes": 192}
    own_rung = policy._rung_of("trial-0003")
    assert own_rung is not None
    names = {finished.record.name for finished in policy._finished_at(own_rung)}
    assert {"trial-0000", "trial-0001", "trial-0002"} <= names
    assert "trial-0003" not in names
    read = policy._rung_of

    def rung_on_other_images(name):
        rung = read(name)
        return replace(rung, digests=()) if name == "trial-0001" else rung

    monkeypatch.setattr(policy, "_rung_of", rung_on_other_images)
    assert {finished.record.name for finished in policy._finished_at(own_rung)} == names - {"trial-0001"}


def test_a_trial_that_breaks_a_constraint_beats_no_trial_but_counts_in_the_estimate(raced_sweep):
    broken = {"constraints": {"one": 0.1}}
    decision = decide_after_first_block(
        raced_sweep, changes={f"trial-{number:04d}": broken for number in (0, 1, 2)}, race=Race(reserve=1)
    )
    assert (decision.rival, decision.reason) == ("", None)
    second = decide_after_first_block(raced_sweep, changes={"trial-0001": broken})
    assert second.rival in ("trial-0000", "trial-0002")
    assert second.estimate == decide_after_first_block(raced_sweep).estimate


def test_a_race_works_with_one_objective(raced_sweep):
    (accuracy, _) = raced_sweep.space.objectives
    decision = decide_after_first_block(raced_sweep, objectives=(accuracy,))
    assert decision.rival is not None
    assert len(decision.leads) == 1
    assert len(decision.estimate) == 1
    assert f" ± {2.3263 * decision.deviations[0]:.2f} in accuracy, after" in decision.reason


def test_a_race_works_with_an_objective_on_one_dataset(raced_sweep):
    more = (*raced_sweep.space.objectives, Objective(metric="ece/digits"))
    decision = decide_after_first_block(raced_sweep, objectives=more)
    assert len(decision.estimate) == 3
    assert "in ece/digits" in decision.reason


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Constraint(metric="accuracy", at_least=70), "breaks accuracy by"),
        (Constraint(metric="accuracy", at_least=-3, baseline=ZERO_SHOT), f"breaks accuracy_vs_{ZERO_SHOT} by"),
        (Constraint(metric="accuracy", at_least=40), None),
        (Constraint(metric="accuracy", at_least=-40, baseline=ZERO_SHOT), None),
        (Constraint(metric="accuracy", at_least=50.9), None),  # broken, but within the noise
    ],
)
def test_a_constraint_that_is_broken_beyond_chance_stops_a_trial(raced_sweep, constraint, message):
    objective = Objective.recorded(metric="ece", goal="max")  # the trial is best in this objective
    decision = decide_after_first_block(raced_sweep, objectives=(objective,), constraints=(constraint,))
    assert (decision.reason or "").startswith(message or "")
    assert (decision.reason is None) == (message is None)
    if message:
        assert decision.constraints[constraint.name] > 0
        assert len(decision.estimate) == 1


def test_a_resumed_driver_keeps_earlier_decisions(raced_sweep, worker, tmp_path):
    """A driver dies after it decided to stop a trial and before it wrote that into the trial's record."""
    path = shutil.copytree(raced_sweep.folder.path, tmp_path / "sweep")
    folder = SweepFolder(path)
    file = folder.race("trial-0005") / "decisions.json"
    document = json.loads(file.read_text())
    document["decisions"][0] |= {"reason": "as it was decided then", "estimate": [1.0, 2.0]}
    file.write_text(json.dumps(document))
    folder.write_trial(replace(folder.trial("trial-0005"), state="interrupted", estimate=None, fidelity=1.0))
    (path / "study.journal").unlink()
    later = Sweep(path, worker).run()
    record = folder.trial("trial-0005")
    assert (record.state, record.reason, record.estimate) == ("stopped", "as it was decided then", [1.0, 2.0])
    assert later.study_trials()[5][1:3] == ([1.0, 2.0], "0.3333")
    assert later.study_trials()[:5] == raced_sweep.study_trials()[:5]


@pytest.mark.parametrize("damage", ["another trial's", "cut off", "no decisions"])
def test_an_unusable_file_of_decisions_is_decided_anew(raced_sweep, worker, tmp_path, damage):
    """Such files are left, for example, if record and study are lost and other settings are drawn."""
    folder = SweepFolder(shutil.copytree(raced_sweep.folder.path, tmp_path / "sweep"))
    file = folder.race("trial-0005") / "decisions.json"
    document = json.loads(file.read_text())
    document["decisions"][0]["reason"] = None
    texts = {"another trial's": json.dumps(document | {"config": "other"}), "cut off": "{", "no decisions": "[]"}
    file.write_text(texts[damage])
    (file.parent / "block-2.npz").write_bytes(b"of another trial, which went further")
    record = replace(folder.trial("trial-0005"), state="interrupted", estimate=None, fidelity=1.0)
    folder.write_trial(record)
    folder.study_file.unlink()
    later = Sweep(folder.path, worker).run()
    assert later.decisions() == raced_sweep.decisions()
    assert not (file.parent / "block-2.npz").exists()


def averages_by_split(record):
    return {split: result.average for split, result in record.results.items()}


@pytest.mark.parametrize(("last", "left"), [(1, 3), (3, 2), (5, 1)])
def test_a_killed_and_resumed_race_makes_the_decisions_of_an_undisturbed_one(raced_sweep, worker, tmp_path, last, left):
    """The kills come after a decision, at the end of the rung before a decision, and within that rung."""
    first = Sweep(tmp_path / "sweep", worker)
    with pytest.raises(Killed):
        first.run(stop_at=f"trial-{last:04d}", left=left)
    del first
    later = Sweep(tmp_path / "sweep", worker).run()
    assert later.decisions() == raced_sweep.decisions()
    assert later.study_trials() == raced_sweep.study_trials()
    fields_that_differ = {"started": 0, "finished": 0, "attempt": 0, "seconds_without_result": 0, "results": {}}
    for name, record in later.records().items():
        undisturbed = raced_sweep.records()[name]
        assert replace(record, **fields_that_differ) == replace(undisturbed, **fields_that_differ)
        assert averages_by_split(record) == averages_by_split(undisturbed)


def test_continue_trials_finishes_a_stopped_trial(raced_sweep, worker, tmp_path):
    path = shutil.copytree(raced_sweep.folder.path, tmp_path / "sweep")
    before = raced_sweep.folder.trial("trial-0003")
    again = Sweep(path, worker, continue_trials=["trial-0003", "trial-0003"])
    assert (again.searcher.progress.stopped, again.searcher.progress.finished) == (2, 3)
    waiting = again.folder.trial("trial-0003")
    assert waiting.state == "waiting"
    assert again.searcher._trials_to_continue == ["trial-0003"]
    for state in ("waiting", "interrupted"):
        again.folder.write_trial(replace(waiting, state=state))
        load_for_resume(again.space, Options(resume=True, continue_trials=("trial-0003",)), again.folder)
    # if the driver dies now, the next one continues the trial
    later = Sweep(path, worker).run()
    record = later.folder.trial("trial-0003")
    assert (record.state, record.estimate, record.seconds_without_result) == (
        "complete",
        before.estimate,
        before.seconds_without_result,
    )
    assert record.values != before.estimate
    assert (later.searcher.progress.stopped, later.searcher.progress.finished) == (2, 4)
    assert later.study_trials() == raced_sweep.study_trials()  # the study keeps the values that were reported first
    assert later.decisions()["trial-0003"] == raced_sweep.decisions()["trial-0003"]
    metrics = trial_run(later.folder.info(), record).metrics
    assert (metrics["fidelity"], metrics["accuracy"]) == (1.0, pytest.approx(record.values[0], rel=1e-5))
    records = later.records().values()
    assert savings_text(list(records), "val").startswith("2 of 6 trials stopped early; ")
    not_stopped = [record for record in records if record.state != "stopped"]
    assert savings_text(not_stopped, "val") == "no trial was stopped early; nothing was saved"


def test_savings_are_a_share_of_the_device_time_of_all_trials():
    """Two trials of 100 s, 40 s of which adapt, and one that was stopped halfway after 30 s: 20 of 250 s are saved."""
    costs = {"scenes": {"adapt": 40.0}}
    result = replace(split_result(60.0, 10.0), worker_seconds=100.0, costs=costs)
    whole = [replace(trial(number), results={"val": result}) for number in range(2)]
    stopped = replace(
        trial(2), state="stopped", results={}, seconds_without_result=30.0, fidelity=0.5, estimate=[60.0, 10.0]
    )
    line = savings_text([*whole, stopped], "val")
    assert line.startswith("1 of 3 trials stopped early; that saved 17% of adaptation, 8% of all worker time")


@pytest.mark.parametrize("name", ["trial-0001", "trial-0099", f"baseline-{ZERO_SHOT}"])
def test_only_trials_that_failed_or_lost_a_race_can_be_continued(raced_sweep, name):
    problem = "cannot be continued; name a trial that failed or was stopped early: trial-0003, trial-0004, trial-0005"
    with pytest.raises(InputError, match=f"--continue-trials {name}: {problem}"):
        load_for_resume(raced_sweep.space, Options(resume=True, continue_trials=(name,)), raced_sweep.folder)


def test_a_failed_trial_can_be_continued_unless_its_settings_exclude_each_other(raced_sweep, tmp_path):
    folder = SweepFolder(shutil.copytree(raced_sweep.folder.path, tmp_path / "sweep"))
    ended = replace(folder.trial("trial-0001"), state="failed", results={}, values=None, constraints={})
    again = Options(resume=True, continue_trials=("trial-0001",))
    folder.write_trial(replace(ended, reason="scenes, val samples 0..64, seed 0: not an image"))
    load_for_resume(raced_sweep.space, again, folder)
    assert reopen_failed_trials(folder, ["trial-0001", "trial-0001"]) == []
    for state in ("waiting", "interrupted"):  # the driver is killed after it has reopened the trial
        folder.write_trial(replace(folder.trial("trial-0001"), state=state))
        load_for_resume(raced_sweep.space, again, folder)
    folder.write_trial(replace(ended, reason=f"{IMPOSSIBLE}: views.min_area: must be <= views.max_area"))
    with pytest.raises(InputError, match="--continue-trials trial-0001: cannot be continued; name a trial"):
        load_for_resume(raced_sweep.space, again, folder)


def test_a_rebuilt_study_has_the_recorded_estimates(raced_sweep, tmp_path):
    folder = SweepFolder(shutil.copytree(raced_sweep.folder.path, tmp_path / "sweep"))
    trials = SweepStudy(folder.study_file, "sweep", raced_sweep.space, records=folder.trials())._study.get_trials()
    assert [(trial.state, trial.values, trial.user_attrs.get("fidelity"), trial.params) for trial in trials] == (
        raced_sweep.study_trials()
    )
