"""Luck of the search: a trial's values are too good on the images, and with the pretraining seeds, that chose it."""

from __future__ import annotations

from collections.abc import Mapping

from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.statistics.paired import SplitStatistics


def has_images_of_search(info: SweepInfo, splits: Mapping[str, SplitStatistics], split: str) -> bool:
    """Return True if a split has images by which the search chose its trials.

    The final stage has them if there are no fresh images, and the test split may have the same images under another
    name. The best of many trials is lucky with these images.
    """
    if split == info.search_split:
        return True
    if split not in splits or info.search_split not in splits:
        return False
    searched_images = set(splits[info.search_split].samples.digests.values())
    return bool(searched_images & set(splits[split].samples.digests.values()))


def has_seeds_of_search(info: SweepInfo, splits: Mapping[str, SplitStatistics], split: str, trial: TrialRecord) -> bool:
    """Return True if a trial's prompts on a split were pretrained with seeds that chose it.

    Without a final stage, the front runs on the test split with the seeds of the search. The best of many trials is
    lucky with its prompts. A seed that only draws views cannot have chosen the trial: other images get other views.
    """
    if not trial.has_fpp_prompt or split not in splits or trial.name not in splits[split].samples.records:
        return False
    seeds = set(splits[split].samples.records[trial.name].seeds)
    seeds_of_search = set(info.seeds)
    if info.search_split in splits and trial.name in splits[info.search_split].samples.records:
        seeds_of_search = set(splits[info.search_split].samples.records[trial.name].seeds)
    return bool(seeds & seeds_of_search)
