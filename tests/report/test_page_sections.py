"""The sections of a sweep's page: texts, tables and plots, and the conditions on which each of them is there."""

import json
from dataclasses import replace

import pytest

from fpp_sweep.records.answer import statistics_of, statistics_of_samples
from fpp_sweep.records.front import front_of
from fpp_sweep.report.document import Details, Plot, PlotGroup, Section, Text
from fpp_sweep.report.effects import Effects
from fpp_sweep.report.page import READING, SweepReport, sweep_document
from fpp_sweep.report.pages import load_report, shares_document
from fpp_sweep.report.settings_section import CURVES, MAPS, SHARES
from fpp_sweep.report.table import Table
from fpp_sweep.report.writing import write_report
from tests.kit.names import ZERO_SHOT
from tests.kit.records import all_baselines, baseline, failed, sweep_info, sweep_with_effects, trial, write_sweep


@pytest.fixture
def report_of_records(tmp_path):
    """Return a function that gives the report of records, without effects unless these are given."""

    def make(records, *, is_running=False, effects=None, notes=(), **changes):
        info = sweep_info(**changes)
        if effects is None:
            effects = [Effects(objective.metric, skipped="few trials") for objective in info.objectives]
        folder = write_sweep(tmp_path, info, records)
        return SweepReport(
            folder=folder,
            info=info,
            records=records,
            statistics=statistics_of_samples(info, front_of(info, records), {}, notes),
            effects=effects,
            is_running=is_running,
        )

    return make


def section_named(report, title):
    (found,) = [section for section in sweep_document(report).sections if section.title == title]
    return found


def texts_of(blocks):
    return [block.text for block in blocks if isinstance(block, Text) and block.text]


def titles_of(section):
    return [block.title for block in section.blocks if isinstance(block, Section)]


def trials_over(keys="a", count=2):
    trials = []
    for number in range(count):
        trials.append(trial(number, 70 + number, 5 - number, params={**dict.fromkeys(keys, number), "same": 3.0}))
    return trials


def test_the_introduction_counts_trials_by_state_and_names_the_goals(report_of_records):
    broken = trial(2, 71, 6, constraints={"ece": 1.0})
    report = report_of_records([trial(0), trial(1), broken, failed(3)], space={"question": "Why?"}, notes=["a note"])
    question, state, counts, note = sweep_document(report).introduction
    assert question.text == "Why?"
    assert state.text.startswith("finished; started ")
    assert counts.text == (
        "accuracy (max) and ece (min) on the val split: 3 trials finished, 1 failed, 0 running; "
        "1 on the front, 1 with a broken constraint."
    )
    assert (note.text, note.style) == ("a note", "warning")


def test_only_the_page_of_a_running_sweep_shows_its_progress(report_of_records):
    for is_running in (False, True):
        report = report_of_records([trial(0)], is_running=is_running)
        leads = [block.text for block in sweep_document(report).introduction if block.style == "lead"]
        assert bool(leads) == is_running
        costs = texts_of(section_named(report, "Progress").blocks)
        assert any(text.startswith("Left: ") for text in costs) == is_running


@pytest.mark.parametrize(
    ("split", "evaluate_only", "is_warned"),
    [("test", False, True), ("test", True, False), ("val", False, False), ("val", True, False)],
)
def test_a_search_on_the_test_split_is_called_optimistic(report_of_records, split, evaluate_only, is_warned):
    record = trial(0)
    record = replace(record, results={split: record.results["val"]})
    report = report_of_records([record], search_split=split, space={"search": {"evaluate_only": evaluate_only}})
    warnings = [block.text for block in sweep_document(report).introduction if block.style == "warning"]
    assert bool(warnings) == is_warned


def test_every_section_can_be_linked(report_of_records):
    report = report_of_records([trial(0), *all_baselines()])
    document = sweep_document(report)
    assert document.title == report.info.name
    assert [section.anchor for section in document.sections] == [
        "answer", "front", "trials", "settings", "datasets", "progress", "provenance"
    ]  # fmt: skip


def test_the_front_has_its_plot_its_table_and_an_explanation(report_of_records):
    plot, table, colours, details = section_named(report_of_records([trial(0)]), "Front").blocks
    assert (type(plot), type(table), type(details)) == (Plot, Table, Details)
    assert colours.text.startswith("Blue rows")
    assert details.summary == "How to read this"
    assert texts_of(details.blocks) == list(READING)
    kinds = [type(block) for block in section_named(report_of_records([]), "Front").blocks]
    assert kinds == [Plot, Details]


def test_settings_are_explained_if_there_is_a_plot_and_constant_ones_are_named(report_of_records):
    section = section_named(report_of_records(trials_over("ab", 3)), "Settings")
    all_settings = section.blocks[0]
    usage, plot, constants = all_settings.blocks
    assert (usage.text, usage.style) == (
        "A line for each trial. Drag along an axis to keep the lines through it.",
        "usage",
    )
    assert plot.traces
    assert constants.text == "The same in all finished trials: same = 3."
    two = section_named(report_of_records(trials_over("ab", 2)), "Settings").blocks[0]
    assert texts_of(two.blocks)[-1] == "The same in all finished trials: same = 3."
    one = section_named(report_of_records(trials_over(count=1)), "Settings").blocks[0]
    assert texts_of(one.blocks) == []
    params = [trial(number, params={"a": number}) for number in range(2)]
    varied = section_named(report_of_records(params), "Settings").blocks[0]
    assert len(texts_of(varied.blocks)) == 1


def test_explanations_of_effects_are_shown_where_effects_are_known(report_of_records):
    information, records = sweep_with_effects(32)
    report = report_of_records(records, space=information.space)
    known = load_report(report.folder)
    assert {row.skipped for row in known.effects} == {""}
    section = section_named(known, "Settings")
    assert titles_of(section) == ["All settings", "One setting at a time", "Two settings at a time", "Importance"]
    slices, maps, importance = section.blocks[1:]
    assert isinstance(slices.blocks[0], PlotGroup)
    assert texts_of(slices.blocks) == [CURVES]
    assert len(maps.blocks[0].plots) == 6  # three pairs of settings for each objective
    assert texts_of(maps.blocks) == [MAPS]
    assert texts_of(importance.blocks) == [SHARES]
    partly = replace(known, effects=[known.effects[0], Effects("ece", skipped="all trials have the same ece")])
    importance = section_named(partly, "Settings").blocks[-1]
    assert texts_of(importance.blocks) == ["ece: all trials have the same ece.", SHARES]
    none = replace(known, effects=[Effects(metric, skipped="few") for metric in ("accuracy", "ece")])
    section = section_named(none, "Settings")
    assert titles_of(section) == ["All settings", "One setting at a time", "Importance"]
    assert [texts_of(block.blocks) for block in section.blocks[1:]] == [[], []]
    assert section.blocks[-1].blocks[0].placeholder == "accuracy: few. ece: few."


def test_effects_note_the_trials_whose_values_were_moved(report_of_records):
    records = [baseline(ZERO_SHOT, 68.0, 5.0)]
    for number in range(12):
        records.append(trial(number, 70.0 if number < 11 else 20.0, 5.0, params={"a": number}))
    effects = [Effects("accuracy", {"a": 1.0}, {"a": (1.0, 1.0)}), Effects("ece", skipped="few")]
    importance = section_named(report_of_records(records, effects=effects), "Settings").blocks[-1]
    assert texts_of(importance.blocks)[-1].startswith("For the model, values of 1 trial more than 5 points below")


def test_datasets_have_the_heat_map_and_a_table_for_each_split(report_of_records):
    section = section_named(report_of_records([trial(0), trial(1, test=True)]), "Datasets")
    gains, *tables = section.blocks
    assert gains.title == "Gains and losses"
    assert gains.blocks[0].traces
    assert [table.title for table in tables] == ["val split", "test split"]
    empty = section_named(report_of_records([failed(0)]), "Datasets")
    assert texts_of(empty.blocks) == ["No trial is complete."]
    assert not [block for block in empty.blocks if isinstance(block, Table)]


def test_progress_has_costs_and_the_hypervolume(report_of_records):
    report = report_of_records([trial(0), trial(1)], space={"search": {"trials": 9}})
    section = section_named(report, "Progress")
    assert texts_of(section.blocks)[1:] == ["Budget: trials 9."]
    (hypervolume,) = [block for block in section.blocks if isinstance(block, Section)]
    assert hypervolume.title == "Hypervolume"
    assert hypervolume.blocks[0].traces


# --- the report as files ------------------------------------------------------------------------------


def test_the_file_of_importances_has_shares_with_their_intervals_or_a_reason(tmp_path):
    effects = Effects("ece", {"a": 0.5, "b": 0.25}, {"a": (0.4, 0.6), "b": (0.1, 0.3)})
    assert shares_document(effects) == {
        "a": {"share": 0.5, "low": 0.4, "high": 0.6}, "b": {"share": 0.25, "low": 0.1, "high": 0.3}
    }  # fmt: skip
    folder = write_sweep(tmp_path, sweep_info(), [trial(0)])
    write_report(folder, pages=True)
    written = json.loads((folder.report / "importances.json").read_text())
    reason = {"skipped": "1 finished trial; effects need 30"}
    assert written == {"accuracy": reason, "ece": reason}


def test_a_report_without_pages_writes_tables_and_configs_only(tmp_path):
    folder = write_sweep(tmp_path, sweep_info(), [trial(0)])
    write_report(folder, pages=False)
    written = {str(path.relative_to(folder.report)) for path in folder.report.rglob("*") if path.is_file()}
    assert {"front.csv", "front.json", "answer.md", "best/knee.yaml"} <= written
    assert not {"sweep.html", "front.png", "importances.json"} & written
    write_report(folder, pages=True)
    written = {path.name for path in folder.report.iterdir()}
    assert {"sweep.html", "front.png", "importances.json"} <= written


def test_a_report_computes_the_statistics_unless_it_gets_those_of_an_earlier_one(tmp_path):
    folder = write_sweep(tmp_path, sweep_info(), [trial(0)])
    first = write_report(folder, pages=False)
    assert [record.name for record in first.front.members] == ["trial-0000"]
    assert write_report(folder, pages=False, statistics=first) is first
    assert write_report(folder, pages=False) is not first
    computed = statistics_of(folder, folder.info(), folder.trials())
    assert first.answer.reason == computed.answer.reason
