"""What a sweep's numbers bear: intervals, support for being on the front, differences to baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fpp_sweep.records.front import Front, metrics_shown, splits_of, values_of
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.spec import catalogue
from fpp_sweep.statistics import old_bootstrap as core
from fpp_sweep.statistics.block_stats import Numbers
from fpp_sweep.statistics.old_bootstrap import Common
from fpp_sweep.trial.evidence import SplitEvidence, nearest, of_split, signed


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Of a sweep's front."""

    splits: Mapping[str, SplitEvidence]
    support: Mapping[str, float]  # for being on the front, of every trial that may be
    alike: Mapping[str, Sequence[str]]  # of each member, the trials that no objective tells from it
    expected: Mapping[str, float]  # the accuracy of the most accurate member, less what it owes to being chosen
    region: tuple[Numbers, Numbers] | None = None  # of two objectives: see core.attained, in the objectives' own signs

    def standing(self, name: str) -> str:
        """Such as `clear 0.93`; empty where nothing is known."""
        return f"{core.word(self.support[name])} {self.support[name]:.2f}" if name in self.support else ""


def evidence_of(
    artifacts: Callable[[str], Path],
    info: SweepInfo,
    front: Front,
    common: Mapping[str, Common] | None = None,
    places: Numbers | None = None,
) -> Evidence:
    """What the sums that stand with the records say; without any, nothing.

    `artifacts` tells where a record's files are. Over the images that are `common` on a split, where that is given;
    `places` are where the region is asked for.
    """
    metrics = tuple(core.needed(dict.fromkeys(name.partition("/")[0] for name in metrics_shown(info.objectives))))
    splits = {}
    for split in splits_of(info, front.compared):
        records = nearest(front) + list(front.baselines) if split == info.search_split else front.compared
        if found := of_split(artifacts, records, split, metrics, common[split] if common else None):
            far = frozenset(record.name for record in front.finished) - {record.name for record in records}
            splits[split] = replace(found, far=far)
    searched = splits.get(info.search_split)
    trials = [trial for trial in front.trials if searched and trial.name in searched.places]
    if searched is None or not trials:
        return Evidence(splits, {}, {}, {})
    better = signed(front, searched, trials)
    shares = core.front_support(better)
    support = {trial.name: float(share) for trial, share in zip(trials, shares, strict=True)}
    return Evidence(
        splits,
        support,
        {member.name: _alike(front, searched, member.name, support) for member in front.members},
        _expected(front, better),
        _region(front, better, places),
    )


def _alike(front: Front, searched: SplitEvidence, name: str, trials: Mapping[str, float]) -> list[str]:
    if name not in searched.places:
        return []
    same = np.ones(len(searched.places), np.bool_)
    for objective in front.objectives:
        found, stem, _ = searched.found(objective.metric)
        if stem in found:
            same &= core.alike(found, [stem], searched.places[name])
    return [other for other, place in searched.places.items() if same[place] and other != name and other in trials]


def _expected(front: Front, better: Numbers) -> dict[str, float]:
    for index, objective in enumerate(front.objectives):
        if objective.metric == catalogue.ACCURACY and front.members:
            best = max(front.members, key=lambda member: values_of(member)[index])
            return {best.name: values_of(best)[index] - core.optimism(better[index])}
    return {}


def _region(front: Front, better: Numbers, places: Numbers | None) -> tuple[Numbers, Numbers] | None:
    if len(front.objectives) != 2:
        return None
    first, second = (catalogue.sign(objective.goal) for objective in front.objectives)
    places, reached = core.attained(better, None if places is None else first * places)
    return first * places, second * reached
