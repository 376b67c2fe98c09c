"""Claims of a table: verdicts from our own numbers, by the test of all shown differences."""

from dataclasses import replace

import pytest

from fpp_sweep.reproduce.claims import judge_claims
from fpp_sweep.reproduce.experiments import Claim, find
from fpp_sweep.statistics.paired import SplitStatistics
from tests.kit.experiments import result_from_stats, two_seed_result, write_experiment
from tests.kit.measured import World

SETS = ("dtd", "pets")
MAIN = find("main")


def better(row, *others, column="accuracy", **options):
    return Claim(says=f"{row} is better", row=row, than=list(others), column=column, **options)


def table_with(path, claims, sides, images=400, seeds=(0, 1)):
    """Write the main table with other claims; `sides` has the accuracy and the overconfidence of each row."""
    world = World(images, datasets=SETS)
    stats = {row: world.block_stats(*side, seeds=seeds) for row, side in sides.items()}
    results = {row: result_from_stats(table, sce=1.0) for row, table in stats.items()}
    return write_experiment(path, replace(MAIN, claims=tuple(claims)), SETS, results, stats=stats)


def verdicts(table):
    return [claim.verdict for claim in judge_claims(table)]


SIDES = {"zero_shot": (0.6, 0.1), "tpt": (0.7, 0.1), "ctpt": (0.602, 0.1)}


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (better("tpt", "zero_shot"), "holds"),
        (better("tpt", "zero_shot", "ctpt"), "holds"),
        (better("zero_shot", "tpt"), "does not hold"),
        (better("zero_shot", "tpt", kind="worse"), "holds"),
        (better("tpt", "zero_shot", kind="worse"), "does not hold"),
        (better("zero_shot", "ctpt"), "undecided"),
        (better("zero_shot", "tpt", kind="differs"), "differs"),
        (better("zero_shot", "ctpt", kind="differs"), "undecided"),
        (better("tpt", "zero_shot", where="every dataset"), "holds"),
        (better("fpp", "zero_shot"), "not tested"),  # a row without numbers
        (better("tpt", "zero_shot", "fpp"), "not tested; holds in 1 of 2"),
        (better("zero_shot", "ctpt", "fpp"), "not tested"),
        (better("zero_shot", "tpt", "fpp"), "does not hold"),
        (better("zero_shot", "tpt", "fpp", kind="differs"), "differs"),
    ],
)
def test_a_claim_has_a_verdict(tmp_path, claim, verdict):
    assert verdicts(table_with(tmp_path, [claim], SIDES)) == [verdict]


def test_a_row_of_one_seed_decides_no_claim(tmp_path):
    table = table_with(tmp_path, [better("fpp", "zero_shot")], {"zero_shot": (0.6, 0.1), "fpp": (0.7, 0.1)})
    assert verdicts(table) == ["holds"]
    name = table.records[("fpp", ""), "accuracy"].name
    of_one_seed = {}
    for scope, statistics in table.statistics.items():
        samples = statistics.samples
        record = samples.records[name]
        metrics = {metric: replace(values, by_seed=values.by_seed[:1]) for metric, values in record.metrics.items()}
        records = {**samples.records, name: replace(record, seeds=(0,), metrics=metrics)}
        of_one_seed[scope] = SplitStatistics(replace(samples, records=records))
    (judged,) = judge_claims(replace(table, statistics=of_one_seed))
    assert judged.verdict == "undecided"
    assert judged.numbers.endswith(" (no interval)")


def test_holms_family_is_all_comparisons_of_the_tables_claims(tmp_path):
    """A difference that is significant alone is not significant among many others."""
    sides = {"zero_shot": (0.6, 0.1), "tpt": (0.62, 0.1), "ctpt": (0.6, 0.1), "otpt": (0.6, 0.1), "fpp": (0.6, 0.1)}
    claim = better("tpt", "zero_shot")
    table = table_with(tmp_path, [claim], sides, images=300)
    assert verdicts(table) == ["holds"]
    further = []
    for column in ("accuracy", "ece"):
        further.append(better("ctpt", "zero_shot", "otpt", "fpp", column=column, where="every dataset"))
    among_many = replace(table, experiment=replace(table.experiment, claims=(claim, *further)))
    assert verdicts(among_many)[0] == "undecided"
    numbers = [judge_claims(judged)[0].numbers for judged in (table, among_many)]
    assert numbers == [f"{numbers[1]}*", numbers[1]]  # intervals are not corrected for multiple tests


def test_a_metric_without_block_statistics_is_compared_by_seed(tmp_path):
    def metrics(sce):
        return lambda name, seed: {"accuracy": 50.0, "ece": 8.0, "sce": sce + 0.001 * seed * sce}

    results = {"zero_shot": two_seed_result(SETS, metrics(2.0)), "tpt": two_seed_result(SETS, metrics(1.0))}
    claims = (better("tpt", "zero_shot", column="sce"), better("zero_shot", "tpt", column="sce"))
    table = write_experiment(tmp_path, replace(MAIN, claims=claims), SETS, results)
    assert verdicts(table) == ["holds", "does not hold"]
    # differences by seed are 1.0 and 1.001; t with one degree of freedom: 12.706 standard errors of 0.0005
    assert judge_claims(table)[0].numbers == "+1.00 ± 0.01*"


def test_a_claim_is_not_tested_on_too_few_images(tmp_path):
    table = table_with(tmp_path, [better("tpt", "zero_shot")], SIDES, images=20)
    assert verdicts(table) == ["not tested"]
