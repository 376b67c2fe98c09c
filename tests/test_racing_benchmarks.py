"""The benchmarks of racing: what they count, on made-up trials; that the one of kills sees what it is to see."""

import json

import numpy as np
import pytest

from benchmarks.coverage import OBJECTIVES
from benchmarks.racing import Block, Rule, Shown, made_up, run_race, values
from benchmarks.real_races import SPACE as CLOUD
from benchmarks.real_races import Found, told
from benchmarks.resume import agree, still_decided
from benchmarks.surrogate import OneSearch, World, best_half, racing, worth
from fpp_sweep.space.reading import load_space, parse_space
from fpp_sweep.space.work import Race, Search
from fpp_sweep.spec.errors import InputError
from fpp_sweep.statistics.block_stats import block_size
from fpp_sweep.statistics.old_bootstrap import resampled
from tests.names import named

SPACE = named("""
base: {method: tpt, prompt: a photo of a}
params: {adapt.lr: {low: 0.001, high: 0.1, log: true}, adapt.selection: {low: 0.1, high: 0.5}}
""")

TRIALS = 32


@pytest.fixture(scope="module")
def pool():
    return {name: [one.take(slice(0, 512)) for one in trials] for name, trials in made_up(TRIALS).items()}


@pytest.fixture(scope="module")
def shown(pool):
    return {name: [Shown.of(one) for one in trials] for name, trials in pool.items()}


@pytest.fixture(scope="module")
def world(pool, shown):
    """Its parameters are what the trials are worth, by rank."""
    params = parse_space(SPACE, "space.yaml").searched()
    places = values(pool).argsort(0).argsort(0) / TRIALS
    return World.made(params, [], places, shown, 0.25)


# ------------------------------------------------------------ racing


def test_what_is_kept_of_an_image_gives_the_sums_of_the_product(pool, shown):
    for name, trials in pool.items():
        for one, kept in zip(trials, shown[name], strict=True):
            expected = resampled(name, "val", [one.with_block_size(block_size(512))], OBJECTIVES, 50)
            found = resampled(name, "val", [kept.sums()], OBJECTIVES, 50)
            for metric in OBJECTIVES:
                assert found[metric].tolist() == expected[metric].tolist()
    assert np.mean([[worth(one) for one in each] for each in shown.values()], axis=0) == pytest.approx(values(pool))


def test_a_rule_that_asks_for_less_stops_more(pool, shown):
    blocks = [Block.of(shown, dict.fromkeys(shown, end)) for end in (128, 256)]
    assert [(block.share, block.left) for block in blocks] == [(0.25, 0.75), (0.5, 0.5)]
    costs = {}
    for name, rule in {
        "sure": Rule(Race(confidence=0.99)),
        "less sure": Rule(Race(confidence=0.9)),
        "later": Rule(confidences=(0.99, 0.9)),
        "of many": Rule(Race(confidence=0.99), many=True),
        "seen": Rule(Race(confidence=0.99), seen=True),
        "alone": Rule(Race(confidence=0.99), nearest=1),
    }.items():
        costs[name], stopped = run_race(blocks, values(pool), rule)
        assert costs[name] == pytest.approx(TRIALS - sum(1 - blocks[block].share for block in stopped.values()))
        assert all(trial >= 8 for trial in stopped)
    assert costs["less sure"] < costs["later"] < costs["sure"] < TRIALS
    assert costs["sure"] < min(costs["of many"], costs["seen"])
    assert costs["alone"] != costs["sure"]


# ------------------------------------------------------------ searches


def test_the_space_of_real_sweeps_can_be_read():
    assert len(load_space(CLOUD).searched()) == 6


def search(world, verdict, budget=12.0, seed=0):
    one = OneSearch(world, world.split(512, seed), Search(sampler="random", seed=seed), 512, budget, verdict)
    return one, one.run()


def test_a_search_without_a_race_finishes_what_its_budget_pays_for(world):
    one, outcome = search(world, None)
    assert (outcome.begun, outcome.finished) == (12, 12)
    assert 30 < outcome.volume < 130
    assert [trial.values for trial in one.trials] == [trial.values for trial in search(world, None)[0].trials]


@pytest.mark.parametrize("verdict", [racing(Race(confidence=0.8, reserve=3)), best_half], ids=["race", "half"])
def test_a_search_that_stops_trials_begins_more_for_as_much(world, verdict):
    alone, _ = search(world, None)
    one, outcome = search(world, verdict)
    assert outcome.begun > 12 > outcome.finished
    finished = [trial for trial in one.trials if trial.complete]
    for trial in finished[:3]:  # the same trials in both, which show the same
        assert (trial.truth.tolist(), trial.values) == (
            alone.trials[trial.number].truth.tolist(),
            alone.trials[trial.number].values,
        )


def test_a_trial_that_is_stopped_is_told_by_the_one_that_beat_it(world):
    one, _ = search(world, None, budget=4.0)
    best, last = one.trials[0], one.trials[-1]
    for trial in (best, last):
        trial.blocks[0] = one.seen(trial, 64)
    one.trials = [best]
    last.moved = last.moved + np.array([-30.0, 30.0])
    last.blocks[0] = one.seen(last, 64)
    told = racing(Race(reserve=1))(one, last, 0)
    assert told == pytest.approx(np.array(best.values) - best.blocks[0][:, 0] + last.blocks[0][:, 0])
    assert racing(Race(reserve=2))(one, last, 0) is None
    last.moved = last.moved + np.array([60.0, -60.0])
    last.blocks[0] = one.seen(last, 64)
    assert racing(Race(reserve=1))(one, last, 0) is None


def test_fronts_of_real_sweeps_are_measured_from_one_corner(capsys):
    def found(*points):
        return Found(8, 0, 10.0, {"val": [*points], "test": [*points]})

    told({"true": [found([70.0, 8.0]), found([68.0, 8.0])], "false": [found([68.0, 8.0]), found([68.0, 10.0])]})
    line = "16.00 against 8.00, 8.00 against 4.00; with a race +100.0 ± 0.0 %"
    assert capsys.readouterr().out.splitlines() == [f"hypervolume on val: {line}", f"hypervolume on test: {line}"]


# ------------------------------------------------------------ kills


def write_looks(folder, **trials):
    for name, shares in trials.items():
        (folder / "race" / name).mkdir(parents=True, exist_ok=True)
        looks = [{"share": share, "reason": reason} for share, reason in shares]
        (folder / "race" / name / "looks.json").write_text(json.dumps({"looks": looks}))


def test_a_decision_that_changes_or_is_taken_twice_is_seen(tmp_path):
    write_looks(tmp_path, one=[(0.25, None)], two=[(0.25, "beaten")])
    known = still_decided(tmp_path, {})
    write_looks(tmp_path, one=[(0.25, None), (0.5, None)], three=[(0.25, None)])
    assert [*still_decided(tmp_path, known)] == ["one", "three", "two"]
    write_looks(tmp_path, two=[(0.25, None)])
    with pytest.raises(InputError, match=r"two decided .*'beaten'.*, and after a kill .*None"):
        still_decided(tmp_path, known)
    write_looks(tmp_path, two=[(0.25, "beaten")], one=[(0.25, None), (0.25, None)])
    with pytest.raises(InputError, match="one decided twice after a block"):
        still_decided(tmp_path, known)


STATE = {
    "records": {
        "baseline-tpt": {"kind": "baseline", "number": None},
        "trial-0000": {"kind": "trial", "number": 0, "state": "complete", "reason": None, "estimate": None,
                       "values": [1.0, 2.0]},
        "trial-0001": {"kind": "trial", "number": 1, "state": "stopped", "reason": "beaten", "estimate": [0.5, 3.0],
                       "values": None},
    },
    "looks": {"trial-0000": [{"reason": None}], "trial-0001": [{"reason": "beaten"}]},
    "study": [(0, "COMPLETE"), (1, "COMPLETE")],
    "values": [(0, 0, 1.0), (0, 1, 2.0), (1, 0, 0.5), (1, 1, 3.0)],
    "runs": [("NAME", "FINISHED"), ("0000 1/2", "FINISHED"), ("0001", "FINISHED"), ("tpt", "FINISHED")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "other", "told"),
    [
        ("looks", {"trial-0000": [{"reason": "beaten"}]}, "trial-0000: .* was told as"),
        ("looks", {}, "trial-0001: .* and decided"),
        ("values", [(0, 0, 1.0), (0, 1, 2.0), (1, 0, 0.5), (1, 1, 3.1)], "trial-0001: .* told as .*3.1"),
        ("study", [(0, "COMPLETE")], "the study has trials"),
        ("runs", [("NAME", "FINISHED"), ("0000 1/2", "FINISHED"), ("0000 1/2", "FINISHED")], "MLflow has"),
    ],
)
def test_what_does_not_agree_after_kills_is_seen(part, other, told):
    agree(STATE)
    with pytest.raises(InputError, match=told):
        agree({**STATE, part: other})
