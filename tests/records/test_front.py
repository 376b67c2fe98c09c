"""The front of a sweep as tables and configs."""

from dataclasses import replace

import pytest
import yaml

from fpp_sweep.records.front import front_of, orders_remark, staircase
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.records.texts import values_by_setting
from fpp_sweep.report.writing import write_report
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import TrialConfig
from tests.kit.names import CTPT, OTPT, TPT, ZERO_SHOT
from tests.kit.records import (
    CREATED,
    HOSTILE,
    all_baselines,
    baseline,
    failed,
    searched_trials,
    split_result,
    sweep_info,
    trial,
    write_sweep,
)


def write_and_read_front(path, records, information):
    folder = write_sweep(path, information, records)
    write_report(folder, pages=False)
    return front_of(folder.info(), folder.trials()), folder.report


@pytest.mark.parametrize(("most", "numbers"), [(1, [0, 1]), (2, [0, 1]), (3, [0, 1, 2, 3]), (5, [0, 1, 2, 3, 4])])
def test_the_trials_nearest_to_the_front_are_whole_layers_up_to_a_number(most, numbers):
    broken = trial(3, 68, 4.5, constraints={"seconds": 1.0})
    records = [trial(0, 72, 6), trial(1, 70, 4), trial(2, 71, 7), broken, trial(4, 60, 9)]
    nearest = front_of(sweep_info(), records).nearest(most)
    assert [record.name for record in nearest] == [records[number].name for number in numbers]


def test_the_front_has_the_undominated_trials_by_descending_accuracy():
    records = [trial(0, 70, 4), trial(1, 72, 6), trial(2, 69, 5), trial(3, 70, 4)]
    members = front_of(sweep_info(), records).members
    assert [member.name for member in members] == ["trial-0001", "trial-0000", "trial-0003"]


@pytest.mark.parametrize(
    "best",
    [
        failed(1),
        trial(1, 99, 0, constraints={"accuracy": 0.1}),
        trial(1, 99, 0, state="interrupted"),
        trial(1, 99, 0, state="running", values=None),
        trial(1, 99, 0, state="waiting", values=None, results={}),
        trial(1, 99, 0, state="stopped", values=None),
        baseline(TPT, 99, 0),
    ],
    ids=["failed", "infeasible", "interrupted", "running", "waiting", "stopped", "baseline"],
)
def test_only_finished_and_feasible_trials_are_on_the_front(best):
    front = front_of(sweep_info(), [trial(0), best])
    assert [member.name for member in front.members] == ["trial-0000"]
    assert len(front.hypervolume) == 1


def test_baselines_follow_the_front_in_their_usual_order():
    compared = front_of(sweep_info(), [*all_baselines(), trial(0)]).compared
    labels = [record.label for record in compared]
    assert labels == ["trial-0000", ZERO_SHOT, TPT, CTPT, OTPT, "fpp_paper", "fpp_code"]


def test_the_hypervolume_grows_in_the_order_in_which_trials_finished():
    early, late = trial(0, 70, 10, finished=CREATED + 5), trial(1, 72, 12, finished=CREATED + 3)
    volumes = front_of(sweep_info(), [early, late]).hypervolume
    assert [tuple(point) for point in volumes] == [(CREATED + 3, 12 * 8), (CREATED + 5, 12 * 8 + 10 * 2)]


def test_without_a_reference_there_is_no_hypervolume():
    assert not front_of(sweep_info(reference=None), [trial(0)]).hypervolume


def test_configs_are_settings_that_can_be_run_again(tmp_path):
    front, folder = write_and_read_front(tmp_path, searched_trials(), sweep_info())
    names = {path.name for path in (folder / "best").glob("[!.]*")}
    singles = {"knee.yaml", "best-accuracy.yaml", "best-ece.yaml"}
    assert names == singles | {f"{member.name}.yaml" for member in front.members}
    for member in front.members:
        config = yaml.safe_load((folder / f"best/{member.name}.yaml").read_text())["config"]
        assert keys.config_key(TrialConfig().replace(config)) == keys.config_key(TrialConfig().replace(member.config))
        assert config["fpp.context_var"] == member.params["fpp.context_var"]
    best = yaml.safe_load((folder / "best/best-accuracy.yaml").read_text())["config"]
    assert best == front.members[0].config


def test_a_config_survives_hostile_texts(tmp_path):
    prompt = f"{HOSTILE}\nconfig: owned # \x1b[2J: '"
    _, folder = write_and_read_front(
        tmp_path, [trial(0, params={"prompt": prompt})], sweep_info(model="a\nconfig: owned")
    )
    assert yaml.safe_load((folder / "best/trial-0000.yaml").read_text())["config"]["prompt"] == prompt


def test_the_staircase_is_the_edge_of_the_dominated_region():
    front = front_of(sweep_info(), [trial(0, 72, 9), trial(1, 71, 5), trial(2, 70, 3)])
    xs, ys = staircase(front)
    assert list(zip(xs, ys, strict=True)) == [(72, 9), (71, 9), (71, 5), (70, 5), (70, 3)]


def test_each_setting_has_a_value_or_none_for_every_record():
    records = [trial(0, params={"method": "tpt"}), trial(1, params={"method": "ctpt", "fpp.gamma2": 3.0})]
    assert values_by_setting(records) == {"method": ["tpt", "ctpt"], "fpp.gamma2": [None, 3.0]}


def test_an_imported_baseline_does_not_move_the_knee():
    records = [baseline(ZERO_SHOT, 60.0, 15.0), trial(1, 66.0, 5.0), trial(2, 70.0, 12.5)]
    imported = replace(baseline("theirs", 60.0, 39.0), origin="imported")
    assert imported.is_imported
    for compared in (records, [*records, imported]):
        assert "knee" in front_of(sweep_info(), compared).marks["trial-0001"]


def test_the_knee_is_a_trade_off_though_no_trial_is_as_accurate_as_the_worst_baseline():
    accurate, balanced = trial(0, 76.0, 12.0), trial(1, 75.99, 5.0)
    others = [trial(number, 74.0 + 0.1 * number, 13.0) for number in range(2, 7)]
    records = [baseline(ZERO_SHOT, 76.1, 13.0), accurate, balanced, *others]
    marks = front_of(sweep_info(), records).marks
    assert marks == {"trial-0000": ["best accuracy"], "trial-0001": ["best ece", "knee"]}


def test_the_front_has_each_settings_once():
    """A sampler may propose settings again, whose values are equal."""
    first, repeat, worse = trial(0, 71, 4), trial(3, 71, 4, params=trial(0).params), trial(1, 70, 5)
    equal = trial(4, 71, 4)  # other settings, and by chance the same values
    front = front_of(sweep_info(), [first, worse, repeat, equal])
    assert [member.name for member in front.members] == ["trial-0000", "trial-0004"]
    assert [record.name for record in front.dominated] == ["trial-0001", "trial-0003"]


@pytest.mark.parametrize(
    ("method", "order", "seeds", "remark"),
    [
        ("tda", "shuffled", 3, ["3 orders of the stream"]),
        ("tda", "shuffled", 1, ["one order of the stream"]),
        ("tda", "fair", 3, ["one order of the stream"]),
        ("zero", "shuffled", 3, []),
    ],
)
def test_a_remark_counts_the_orders_of_the_stream(method, order, seeds, remark):
    config = TrialConfig().replace({"method": method, "adapt.order": order}).flat()
    by_seed = {str(seed): {} for seed in range(seeds)} if seeds > 1 else {}
    result = replace(split_result(), by_seed=by_seed)
    record = TrialRecord(name="trial-0000", kind="trial", state="complete", config=config, results={"val": result})
    assert orders_remark(record, "val") == remark
    front = front_of(sweep_info(), [record])
    assert front.remarks(record) == remark
