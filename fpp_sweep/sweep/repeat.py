"""Commands that evaluate configs of a sweep again, with the model, the data and the seeds of the sweep."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.space.validation import as_mapping
from fpp_sweep.spec.messages import command_line

SPLITS = ("val", "test")
DATA_KEYS = ("data_root", "dataset_file")  # keys of `work` that have a flag of the same name
WORK_KEYS = ("limit", "cache", "on_bad_image", "loaders")  # likewise, for the repetition of a trial


def use_command(info: SweepInfo, config: Path) -> str:
    """Return the command that evaluates a config on the test split."""
    words = ["--config", str(config), "--model", _model(info), *_data_flags(info, list(info.datasets), DATA_KEYS)]
    return command_line("fpp_sweep.evaluate", words)


def repeat_command(folder: SweepFolder, info: SweepInfo, record: TrialRecord) -> str:
    """Return the command that evaluates a trial again; a failed one on the dataset and seed that its reason names."""
    reason = record.reason or ""
    datasets, seeds = list(info.datasets), [str(seed) for seed in info.seeds]
    names = "|".join(re.escape(name) for name in datasets)
    failed_task = re.match(rf"(?:on \w+: )?({names}), .*?seed (\d+)\b", reason)
    if failed_task is not None:
        datasets, seeds = [failed_task[1]], [failed_task[2]]
    split = info.search_split
    for name in SPLITS:
        if f"{name} samples" in reason:
            split = name
    work = _work(info)
    threads = work.get("threads") or max(1, int(work.get("cpus_per_worker", 1)))
    words = ["--config", str(folder.trial_file(record.name)), "--model", _model(info)]
    words += ["--split", split, "--seed", *seeds, "--threads", str(threads)]
    if info.plugins:
        words += ["--plugin", *(f"{name}.py" for name in info.plugins)]
    words += _data_flags(info, datasets, (*DATA_KEYS, *WORK_KEYS))
    return command_line("fpp_sweep.evaluate", words)


def _work(info: SweepInfo) -> Mapping[str, Any]:
    return as_mapping(info.space.get("work", {}))


def _model(info: SweepInfo) -> str:
    return str(_work(info).get("model", "tiny"))


def _data_flags(info: SweepInfo, datasets: Sequence[str], keys: Sequence[str]) -> list[str]:
    words = []
    if datasets:
        words += ["--datasets", *datasets]
    for key in keys:
        value = _work(info).get(key)
        if value is not None:
            words += [f"--{key.replace('_', '-')}", str(value)]
    return words
