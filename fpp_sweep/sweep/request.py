"""The space that a command line asks for: of a file for `tune`, of methods and prompts for `evaluate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.search.question import recorded_space
from fpp_sweep.space.reading import load_space, read_config, space_from
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Split
from fpp_sweep.space.yamlfile import of_plain
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import note

EVALUATION = {  # the keys of a space that only evaluates
    "search": {"split": "test", "include_published": False, "evaluate_only": True},
    "work": {"baselines": []},
}
REPEATED_WORK = (  # keys of `work` that decide what a trial's numbers are
    *("model", "data_root", "dataset_file", "datasets", "limit", "seeds", "on_bad_image", "threads", "loaders"),
    *("columns", "posthoc"),
)
FLAGS_OF_TRIALS = {  # flags of `evaluate`, by setting
    "method": "--method",
    "prompt": "--prompt",
    "anchor_prompt": "--anchor-prompt",
}


def space_to_tune(path: Path, overrides: Sequence[str], *, config: Path | None = None) -> Space:
    """Return the space of a file, changed by the overrides; `config` has settings that trials start from."""
    return _with_config(partial(load_space, path), overrides, config)


def space_of_sweep(folder: SweepFolder, overrides: Sequence[str], *, config: Path | None = None) -> Space:
    """Return the space that was asked of a sweep's folder last, changed as `space_to_tune` changes that of a file."""
    return _with_config(partial(recorded_space, folder.info().space, str(folder.info_file)), overrides, config)


def _with_config(load: Callable[[Sequence[str]], Space], overrides: Sequence[str], config: Path | None) -> Space:
    """Return a space with a config's settings as its base; settings that are searched become its first point."""
    if config is None:
        return load(overrides)
    settings = read_config(config)
    searched = {param.key for param in load(overrides).searched()}
    base = []
    for key, value in settings.items():
        if key not in searched:
            base.append(f"base.{key}={_as_yaml(value)}")
    space = load([*base, *overrides])
    try:
        return _with_first_point(space, _searched_values(space, settings))
    except InputError as error:
        note(f"{config}: its point is not tried first: {error.problem}")
        return space


def _with_first_point(space: Space, point: dict[str, Any]) -> Space:
    """Return the space with a point before the others, unless it has that point."""
    if not point or point in space.points:
        return space
    return replace(space, points=(point, *space.points))


def _as_yaml(value: Any) -> str:
    """Return a setting as an assignment takes it: `none` says that it has no value, as null would remove the key."""
    if value is None:
        return "none"
    return json.dumps(value)  # JSON is YAML


def _searched_values(space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's values of the settings that are searched."""
    point: dict[str, Any] = {}
    for param in space.searched():
        if param.key in settings and param.exists(point):
            point[param.key] = settings[param.key]
    return point


def space_to_evaluate(
    overrides: Sequence[str],
    *,
    config: Path | None = None,
    methods: Sequence[str] | None = None,
    prompts: Sequence[str] | None = None,
    anchor_prompt: str | None = None,
) -> Space:
    """Return a space whose trials are all combinations of methods and prompts, on the test split by default.

    Without methods and prompts, they are those of the config; without a config, the plain method and the default one,
    each from the anchor prompt and from a prompt that FPP pretrains.
    """
    _require_flags(overrides)
    settings: Mapping[str, Any] = {}
    if config is not None:
        settings = read_config(config)
    defaults = TrialConfig().replace(settings)
    anchor = anchor_prompt or defaults.anchor_prompt
    if config is None:
        methods = methods or [catalogue.ZERO_SHOT, catalogue.TPT]
        prompts = prompts or [anchor, "fpp"]
    else:
        methods = methods or [defaults.method]
        prompts = prompts or [defaults.prompt]
    base = {key: value for key, value in settings.items() if key not in FLAGS_OF_TRIALS}
    block = {"prompt": list(prompts), "method": list(methods)}
    document = of_plain({**EVALUATION, "base": {**base, "anchor_prompt": anchor}, "grid": [block]}, "evaluate")
    document.places["base"] = (str(config), "base")
    document.places["base.anchor_prompt"] = (f"--anchor-prompt {anchor}", "")
    for key, values in block.items():
        for index, value in enumerate(values):
            document.places[f"grid.0.{key}.{index}"] = (f"--{key} {value}", "")
    return space_from(document, "evaluate", overrides)


def recorded_trial(sweep: Path, name: str) -> tuple[Path, list[str]]:
    """Return the file of a trial's settings, and the assignments that evaluate these as the sweep did.

    Model, data, seeds, split and metrics are the sweep's. A trial that failed after the search is evaluated on the
    split that it failed on. Raise InputError if the trial was imported.
    """
    folder = SweepFolder.open(sweep)
    info, record = folder.info(), folder.known_trial(name)
    if record.is_imported:
        raise InputError(f"--trial {name}: was imported, so it has no settings; evaluate one of the sweep's own trials")
    split = info.search_split
    if record.reason_split in get_args(Split):
        split = record.reason_split
    work = dict(info.work_settings)
    if not info.evaluate_only and work.get("threads") is None:
        work["threads"] = max(1, int(work.get("cpus_per_worker", 1)))  # as many as a worker on Ray has
    assignments = [f"search.split={split}", f"objectives={json.dumps(info.space['objectives'])}"]
    for key in REPEATED_WORK:
        if work.get(key) is not None:
            assignments.append(f"work.{key}={json.dumps(work[key])}")
    return folder.trial_file(record.name), assignments


def _require_flags(overrides: Sequence[str]) -> None:
    """Raise InputError for an assignment to a setting that has a flag, since trials differ in it."""
    for assignment in overrides:
        key = assignment.partition("=")[0].strip().removeprefix("base.")
        if key in FLAGS_OF_TRIALS:
            raise InputError(f"--set {assignment}: give {FLAGS_OF_TRIALS[key]} instead")
