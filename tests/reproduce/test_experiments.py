"""The shipped tables and figures, and experiment files of users."""

import math

import pytest

from fpp_sweep.reproduce.experiments import AVERAGE, find, mean_of_printed, shipped
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.errors import InputError

CHECKPOINTS = {"coop": "/c/model.pth.tar-50", "maple": "/m/model.pth.tar-2"}
FINE_GRAINED = 10
# printed averages that differ from the mean of their columns, and the largest difference
WRONG_AVERAGES = {("main", "zero_shot", "ece"): 0.007, ("init", "coop_otpt", "accuracy"): 0.009}
WRONG_AVERAGES |= {("natural_shifts", "fpp", "sce"): 0.018, ("flatness", "otpt", "sharpness"): 0.0007}
WRONG_AVERAGES |= {("seeds", "otpt", "ece_std"): 0.006}
USERS_FILE = """
columns: [accuracy, {name: before, metric: accuracy, set: {method: zero_shot}}]
rows:
  - {name: one, set: {method: tpt, prompt: a photo of a}, printed: {accuracy: 60.5, before: {dtd: 44.25, average: 61}}}
  - {name: two, set: {method: tpt, prompt: fpp, fpp.gamma2: x0.1}}
  - {name: three, printed: {accuracy: 70}}
claims:
  - {says: two beats one, row: two, than: [one], column: accuracy}
work: {datasets: [tiny]}
"""


def write_file(tmp_path, text, name="own.yaml"):
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


@pytest.mark.parametrize("name", shipped())
def test_each_shipped_experiment_is_a_grid_of_its_cells(name):
    experiment = find(name)
    assert experiment.title
    assert experiment.question.endswith("?")
    space = experiment.space(overrides=[], checkpoints=CHECKPOINTS)
    assert (space.search.split, space.search.sampler, space.work.baselines) == ("test", "grid", ())
    configs = {space.resolve(point) for point in space.grid_points()}
    cell_configs = set()
    for row in experiment.rows:
        if row.set is not None:
            for column in experiment.columns:
                cell_configs.add(space.resolve(experiment.settings(row, column, CHECKPOINTS)))
    assert configs == cell_configs
    assert len(space.queue()) == len(configs)
    assert space.notes() == []


@pytest.mark.parametrize("name", shipped())
def test_printed_averages_are_the_means_of_their_columns_except_for_known_errors(name):
    experiment = find(name)
    for row in experiment.rows:
        for column, numbers in row.printed.items():
            averaged = experiment.average or [dataset for dataset in numbers if dataset != AVERAGE]
            if AVERAGE in numbers and len(numbers) > 1:
                mean = math.fsum(numbers[dataset].value for dataset in averaged) / len(averaged)
                error = abs(mean - numbers[AVERAGE].value)
                assert error <= WRONG_AVERAGES.get((name, row.name, column), 0.0051), (row.name, column)


def test_the_main_table_has_the_papers_numbers():
    main = find("main")
    rows = {row.name: row for row in main.rows}
    assert rows["fpp"].printed["ece"][AVERAGE].text == "4.13"
    assert len(rows["tpt"].printed["accuracy"]) == FINE_GRAINED + 1
    # computed from the printed columns: without EuroSAT, O-TPT has the lower ECE
    without_eurosat = [name for name in rows["fpp"].printed["ece"] if name not in (AVERAGE, "eurosat")]
    for name, mean in (("fpp", 4.01), ("otpt", 3.52)):
        printed = rows[name].printed["ece"]
        assert mean_of_printed([printed[dataset] for dataset in without_eurosat]).value == pytest.approx(
            mean, abs=0.005
        )


def test_settings_are_the_models_preset_except_for_those_of_a_row(tmp_path):
    experiment = find(write_file(tmp_path, USERS_FILE))
    space = experiment.space(overrides=[], checkpoints={})
    configs = [space.resolve(point) for point in space.grid_points()]
    assert [(config.method, config.prompt) for config in configs] == [
        ("tpt", "a photo of a"),
        ("zero_shot", "a photo of a"),
        ("tpt", "fpp"),
        ("zero_shot", "fpp"),
    ]
    assert configs[0].fpp == preset("tiny").fpp
    assert configs[2].fpp.gamma2 == 1.5  # a tenth of the released 15
    assert len(experiment.space(overrides=[], checkpoints={}, rows=["one"]).grid_points()) == 2


@pytest.mark.parametrize(
    ("slip", "message"),
    [
        ("colums: []\n", "own.yaml:9: colums: unknown key 'colums', did you mean 'columns'?"),
        ("grid: [{method: tpt}]\n", "own.yaml:9: grid: unknown key 'grid'"),
        ("base: {fpp.gamma3: 1}\n", "own.yaml:9: base.fpp.gamma3: unknown setting 'fpp.gamma3'"),
        ("alone: 'yes'\n", "own.yaml:9: alone: must be true or false ('yes')"),
        ("average: {}\n", "own.yaml:9: average: must be a list"),
        ("figure: {kind: pie}\n", "own.yaml:9: figure.kind: unknown kind 'pie'"),
    ],
)
def test_an_error_in_a_key_names_file_and_line(tmp_path, slip, message):
    path = write_file(tmp_path, USERS_FILE.lstrip() + slip)
    with pytest.raises(InputError, match=r"own\.yaml") as caught:
        find(path).space(overrides=[], checkpoints={})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("metric: accuracy", "metric: acuracy", "own.yaml:1: columns.1.metric: unknown metric 'acuracy'"),
        ("method: tpt, prompt: fpp", "metod: tpt, prompt: fpp", "own.yaml:4: rows.1.set.metod: unknown setting"),
        ("name: three", "name: one", "own.yaml:5: rows.2: there is a row named one already"),
        ("printed: {accuracy: 70}", "printed: {ece: 70}", "own.yaml:5: rows.2.printed: unknown column 'ece'"),
        (
            "printed: {accuracy: 70}",
            "printed: {accuracy: x}",
            "own.yaml:5: rows.2.printed.accuracy.average: must be a number (x)",
        ),
        ("than: [one]", "than: [none]", "own.yaml:7: claims.0: unknown row 'none'"),
        ("row: two, ", "", "own.yaml:7: claims.0: needs the key 'row'"),
        ("fpp.gamma2: x0.1", "fpp.draws: 0", "own.yaml:4: rows.1.set.fpp.draws: must be >= 1 (0)"),
    ],
)
def test_an_error_in_a_row_names_its_line(tmp_path, before, after, message):
    path = write_file(tmp_path, USERS_FILE.lstrip().replace(before, after, 1))
    with pytest.raises(InputError, match=r"own\.yaml") as caught:
        find(path).space(overrides=[], checkpoints={})
    assert message in str(caught.value)


def test_a_table_that_compares_times_runs_on_one_worker():
    assert find("costs").space(overrides=[], checkpoints={}).work.workers == 1
    assert find("main").space(overrides=[], checkpoints={}).work.workers is None


def test_rows_without_their_checkpoint_are_left_out():
    init = find("init")
    only = init.space(overrides=[], checkpoints={"coop": "/c/model.pth.tar-50"})
    assert {point["prompt"] for point in only.grid_points()} == {"/c/model.pth.tar-50", "fpp"}
    assert {point["anchor_prompt"] for point in only.grid_points()} == {"a photo of a", "/c/model.pth.tar-50"}
    with pytest.raises(InputError, match=r"give --coop or --maple a checkpoint"):
        init.space(overrides=[], checkpoints={})


def test_unknown_tables_and_tables_that_need_photographs_are_refused():
    with pytest.raises(InputError, match="did you mean 'main'"):
        find("mian")
    with pytest.raises(InputError, match="makes no sense on the embedded model: it has no photographs"):
        find("natural_shifts").embedded_datasets()
    assert find("costs").embedded_datasets() == ["scenes", "letters"]
