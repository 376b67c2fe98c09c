"""The paper's claims on our own numbers, by the rule for every difference that is shown (statistics/paired.py).

Differences are paired by images and contain the variance of seeds. All differences that the claims of one table need
are one family, which Holm's method corrects. Metrics that cannot be computed from block statistics, such as sharpness,
are paired by seed; their test is about the seeds, on these images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from fpp_sweep.reproduce.experiments import AVERAGE, Claim, ExperimentColumn, LineKey
from fpp_sweep.reproduce.tables import SPLIT, ResultTable, values_by_seed
from fpp_sweep.spec.catalogue import parts_of, sign
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS
from fpp_sweep.statistics.paired import Difference, SplitStatistics, adjust_p_values, difference_over_seeds

HOLDS = "holds"
DOES_NOT_HOLD = "does not hold"
DIFFERS = "differs"
UNDECIDED = "undecided"
NOT_TESTED = "not tested"  # a row is missing, or there are too few images
SIGNIFICANT = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedClaim:
    """A claim of the paper with its verdict."""

    says: str
    verdict: str
    numbers: str  # gains with the half-widths of their 95 % intervals


class Pair(NamedTuple):
    """A comparison that a claim makes: the first row is said to be better."""

    first: str
    second: str
    column: str
    scope: str


def judge_claims(table: ResultTable) -> list[JudgedClaim]:
    """Return the verdicts on the experiment's claims."""
    differences: dict[Pair, Difference] = {}
    for claim in table.experiment.claims:
        for pair in pairs_of(table, claim):
            paired = _difference(table, pair)
            if paired is not None:
                differences[pair] = paired
    corrected = dict(zip(differences, adjust_p_values(list(differences.values())), strict=True))
    judged = []
    for claim in table.experiment.claims:
        judged.append(_judge(table, claim, corrected))
    return judged


def pairs_of(table: ResultTable, claim: Claim) -> Iterator[Pair]:
    """Yield the comparisons of a claim."""
    scopes: list[str] = [claim.where]
    if claim.where == "every dataset" or (claim.where == AVERAGE and AVERAGE not in table.scopes):
        scopes = table.datasets
    for scope in scopes:
        for rival in claim.than:
            first, second = claim.row, rival
            if claim.kind == "worse":
                first, second = rival, claim.row
            yield Pair(first, second, claim.column, scope)


def _difference(table: ResultTable, pair: Pair) -> Difference | None:
    """Return the first row minus the second, not yet corrected; None where one is missing or cannot be tested."""
    first = table.records.get((_line(table, pair.first), pair.column))
    second = table.records.get((_line(table, pair.second), pair.column))
    if first is None or second is None or pair.scope not in table.scopes:
        return None
    column = table.experiment.column(pair.column)
    statistics = table.statistics[pair.scope]
    is_resampled = parts_of(column.metric).stem in BLOCKWISE_METRICS and column.of == "mean"
    if is_resampled and {first.name, second.name} <= statistics.samples.records.keys():
        return _resampled_difference(statistics, first.name, second.name, column.metric)
    first_values = _values_by_seed(table, pair.first, column, pair.scope)
    second_values = _values_by_seed(table, pair.second, column, pair.scope)
    if not first_values or not second_values:
        return None
    return difference_over_seeds(first.name, second.name, column.metric, first_values, second_values)


def _line(table: ResultTable, row: str) -> LineKey:
    """Return the line that claims on a row are about."""
    return row, table.experiment.precisions[0]


def _resampled_difference(statistics: SplitStatistics, first: str, second: str, metric: str) -> Difference | None:
    """Return a difference on the resampled images; without an interval if a row has one seed, which may be lucky."""
    paired = statistics.difference(first, second, metric)
    if paired is None:
        return None
    for name in (first, second):
        if not statistics.has_known_seed_variance(name, [metric]):
            return replace(paired, standard_error=math.inf)
    return paired


def _values_by_seed(table: ResultTable, row: str, column: ExperimentColumn, scope: str) -> dict[str, float]:
    """Return a row's value for each seed; of a record without values by seed its only value; empty: it has none."""
    line = _line(table, row)
    cell = table.cell(line, column.name, scope)
    if cell.value is None:
        return {}
    if column.of == "deviation":  # it is about all seeds
        return {"only": cell.value}
    record = table.records[line, column.name]
    values = values_by_seed(record.results[SPLIT], column, table.scopes[scope])
    if not values:
        return {"only": cell.value}
    return values


def _judge(table: ResultTable, claim: Claim, differences: Mapping[Pair, Difference]) -> JudgedClaim:
    column = table.experiment.column(claim.column)
    pairs = list(pairs_of(table, claim))
    tested = [differences[pair] for pair in pairs if pair in differences]
    texts = []
    held = 0
    against = 0
    for paired in tested:
        gain = paired.debiased * sign(column.goal)
        texts.append(_gain_text(gain, paired))
        if paired.is_significant and gain > 0:
            held += 1
        elif paired.is_significant and gain < 0:
            against += 1
    verdict = _verdict(claim, held=held, against=against, tested=len(tested), comparisons=len(pairs))
    return JudgedClaim(says=claim.says, verdict=verdict, numbers=", ".join(texts))


def _gain_text(gain: float, paired: Difference) -> str:
    """Return a gain with the half width of its interval, if it has one: of one seed it has none."""
    spread = f" ± {paired.half_width:.2f}"
    if math.isinf(paired.half_width):
        spread = " (no interval)"
    mark = SIGNIFICANT if paired.is_significant else ""
    return f"{gain:+.2f}{spread}{mark}"


def _verdict(claim: Claim, *, held: int, against: int, tested: int, comparisons: int) -> str:
    """Return the verdict on a claim from the number of significant differences for and against it.

    Without one of its comparisons a claim may be shown to be wrong, but not to hold.

    >>> claim = Claim(says="a is best", row="a", than=["b", "c"], column="ece")
    >>> _verdict(claim, held=1, against=0, tested=2, comparisons=2)
    'undecided; holds in 1 of 2'
    >>> _verdict(claim, held=1, against=0, tested=1, comparisons=2)
    'not tested; holds in 1 of 2'
    """
    if claim.kind == "differs" and held + against:
        return DIFFERS
    if against:
        verdict = DOES_NOT_HOLD
    elif tested < comparisons:
        verdict = NOT_TESTED
    elif held == comparisons:
        return HOLDS
    else:
        verdict = UNDECIDED
    if held:
        verdict = f"{verdict}; holds in {held} of {comparisons}"
    return verdict
