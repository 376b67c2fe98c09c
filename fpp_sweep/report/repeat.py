"""Commands that evaluate configs of a sweep again, with the model, the data and the seeds of the sweep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Constraint, metrics_of
from fpp_sweep.space.validation import as_list, as_mapping
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.messages import command_line, runnable
from fpp_sweep.spec.names import listed_names

SPLITS = ("train", "val", "test")
FLAGS = {"data_root": "--data-root", "dataset_file": "--dataset-file", "limit": "--limit"}  # by key of `work`
KEYS_OF_WORK = ("threads", "cache", "loaders", "on_bad_image")  # keys that a repeated trial needs as well
DEFAULTS = {"on_bad_image": "fail"}


def use_command(info: SweepInfo, config: Path) -> str:
    """Return the command that evaluates a config on the test split."""
    words = ["--config", str(config), *_model_and_data(info, list(info.datasets), ("data_root", "dataset_file"))]
    words += _plugin_words(info)
    return runnable(command_line("evaluate", words))


def repeat_command(folder: SweepFolder, info: SweepInfo, record: TrialRecord) -> str:
    """Return the command that evaluates a trial again; a failed one only with the dataset and seed of its reason."""
    if record.is_imported:
        words = [str(record.config.get("file")), "--as", record.label, "--into", str(folder.path)]
        return runnable(command_line("import", words))
    datasets = list(info.datasets)
    seeds = [str(seed) for seed in info.seeds]
    reason = record.reason or ""
    failed = _dataset_and_seed_of_failure(reason, datasets)
    if failed is not None:
        dataset, seed = failed
        datasets, seeds = [dataset], [seed]
    words = ["--config", str(folder.trial_file(record.name)), *_model_and_data(info, datasets, tuple(FLAGS))]
    words += ["--seed", *seeds, "--set", f"search.split={_split_of_failure(reason) or info.search_split}"]
    words += _work_assignments(info)
    if failed is None:  # some maps need all datasets
        words += _measured_assignments(info)
    words += _plugin_words(info)
    return runnable(command_line("evaluate", words))


def _dataset_and_seed_of_failure(reason: str, datasets: Sequence[str]) -> tuple[str, str] | None:
    """Return the dataset and the seed of the task that has failed, by the reason on record; None without a task.

    >>> _dataset_and_seed_of_failure("on test: dtd, test samples 0..64, seed 3: out of memory", ["pets", "dtd"])
    ('dtd', '3')
    """
    names = "|".join(re.escape(name) for name in datasets)
    task = re.match(rf"(?:on \w+: )?({names}), .*?seed (\d+)\b", reason)
    if task is None:
        return None
    return task[1], task[2]


def _split_of_failure(reason: str) -> str:
    """Return the split of the evaluation that has failed, by the reason on record; empty if it is of none."""
    for split in SPLITS:
        if f"{split} samples" in reason:
            return split
    return ""


def _plugin_words(info: SweepInfo) -> list[str]:
    """Return the flag that loads the sweep's plugins again: a config may name a method of one of them."""
    if not info.plugin_files:
        return []
    return ["--plugin", *info.plugin_files.values()]


def _model_and_data(info: SweepInfo, datasets: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Return the flags of the sweep's model, of datasets, and of these keys of `work`."""
    work = info.work_settings
    words = ["--model", work.get("model", "tiny")]
    if datasets:
        words += ["--datasets", *with_folders(datasets, work.get("datasets", ()))]
    for key in keys:
        if work.get(key) is not None:
            words += [FLAGS[key], str(work[key])]
    return words


def with_folders(names: Iterable[str], requested: Iterable[str]) -> list[str]:
    """Return names of datasets as a command line takes them: those of a user's folders as `NAME=PATH`.

    >>> with_folders(["mine", "dtd"], ["fine_grained", "mine=photos"])
    ['mine=photos', 'dtd']
    """
    folders = {word.partition("=")[0].strip(): word for word in listed_names(requested) if "=" in word}
    return [folders.get(name, name) for name in names]


def _as_yaml(value: Any) -> str:
    """Return a value as `--set` takes it: text with other than plain letters is quoted."""
    text = str(value)
    if re.fullmatch(r"[\w./-]+", text):
        return text
    return json.dumps(value)


def _work_assignments(info: SweepInfo) -> list[str]:
    """Return the keys of `work` that decide how a worker computes, as far as they are not the defaults."""
    work = dict(info.work_settings)
    if not info.evaluate_only and work.get("threads") is None:
        work["threads"] = max(1, int(work.get("cpus_per_worker", 1)))  # as many as a worker on Ray has
    assignments = []
    for key in KEYS_OF_WORK:
        value = work.get(key)
        if value is not None and value != DEFAULTS.get(key):
            assignments.append(f"work.{key}={_as_yaml(value)}")
    return assignments


def _measured_assignments(info: SweepInfo) -> list[str]:
    """Return the keys of `work` without which a repeated trial lacks metrics that the sweep has."""
    work = info.work_settings
    metrics = metrics_of(info.objectives)
    for constraint in as_list(info.space.get("constraints", [])):
        metrics.append(Constraint.recorded(as_mapping(constraint)).metric)
    columns = set(as_list(work.get("columns", [])))
    for metric in metrics:
        row = catalogue.METRICS.get(catalogue.parts_of(metric).stem)
        if row is not None:  # else of a plugin that is not loaded
            columns.update(row.columns)
    assignments = []
    for key, values in (("posthoc", as_list(work.get("posthoc", []))), ("columns", sorted(columns))):
        if values:
            assignments.append(f"work.{key}={json.dumps(values)}")
    return assignments
