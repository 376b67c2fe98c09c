"""Published settings: of methods by dataset, with how they were chosen, and of FPP, with the baselines that have them.

A method's released values replace settings that a user leaves open; a search tries the settings of FPP first.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import PRESETS, AdaptConfig, TrialConfig

TEMPLATES_FILE = Path(__file__).with_name("released_templates.toml")
FALLBACK_TEMPLATES = "simple"  # for datasets without released templates; our choice: those of ImageNet
OPEN_VALUES = (None, "auto")  # values that mean "not set by the user": a released value replaces them

# The way in which a released value was chosen. `fixed`: one value for all datasets. `not said`: its authors do not say.
# `ours`: no value of its authors is known here.
HowChosen = Literal["fixed", "not said", "ours"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedSetting:
    """A setting of a method with its released values."""

    key: str
    chosen: HowChosen
    default: Any  # our value for datasets without a released one; None: the default or the method's row decides
    datasets: Mapping[str, Any]  # released values by dataset

    def value(self, dataset: str) -> Any:
        """Return the value on a dataset; None if the setting stays as it is."""
        return self.datasets.get(dataset, self.default)


@cache
def released_settings() -> dict[str, list[ReleasedSetting]]:
    """Return the released settings by method, from the tables `released` of catalogue.toml.

    >>> [setting.key for setting in released_settings()["tda"]]
    ['adapt.cache_alpha', 'adapt.cache_beta']
    """
    settings = {}
    for method, table in catalogue.BUILT_IN_TABLES["methods"].items():
        entries = table.get("released", {})
        settings[method] = [_read_setting(key, entry) for key, entry in entries.items()]
    return settings


def _read_setting(key: str, entry: Mapping[str, Any]) -> ReleasedSetting:
    if "same_as" in entry:
        return _read_setting(key, catalogue.BUILT_IN_TABLES["methods"][entry["same_as"]]["released"][key])
    assert entry["chosen"] in get_args(HowChosen), f"{key}: chosen = {entry['chosen']!r}"
    return ReleasedSetting(
        key=key, chosen=entry["chosen"], default=entry.get("value"), datasets=entry.get("datasets", {})
    )


def fill_released(table: str, dataset: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key; a method's released values on a dataset replace those that are open.

    `table` is the method's table of released settings, its name.

    >>> fill_released("tda", "pets", {"adapt.cache_alpha": None, "adapt.cache_beta": 3.0})
    {'adapt.cache_alpha': 2.0, 'adapt.cache_beta': 3.0}
    """
    filled = dict(settings)
    for setting in released_settings().get(table, []):
        value = setting.value(dataset)
        is_open = setting.key in filled and filled[setting.key] in OPEN_VALUES
        if value is not None and is_open:
            filled[setting.key] = value
    return filled


def with_released(table: str, dataset: str, adapt: AdaptConfig) -> AdaptConfig:
    """Return a config in which released values on a dataset replace open settings; see fill_released."""
    settings = {f"adapt.{name}": getattr(adapt, name) for name in AdaptConfig.__dataclass_fields__}
    filled = fill_released(table, dataset, settings)
    return dataclasses.replace(adapt, **{key.removeprefix("adapt."): value for key, value in filled.items()})


@cache
def released_templates() -> dict[str, str | list[str]]:
    """Return the released templates by dataset: a list of templates, or the name of one of open_clip's lists."""
    return tomllib.loads(TEMPLATES_FILE.read_text())


def resolved_templates(templates: str, dataset: str) -> str | list[str]:
    """Return the templates of a dataset: a list, or the name of a list, for a value of `adapt.templates`.

    >>> resolved_templates("released", "dtd"), resolved_templates("released", "cars")
    (['{} texture.'], 'simple')
    """
    if templates != "released":
        return templates
    return released_templates().get(dataset, FALLBACK_TEMPLATES)


def released_settings_in_use(config: Mapping[str, Any], datasets: Collection[str]) -> dict[HowChosen, list[str]]:
    """Return the settings that a config leaves at released values, by how these values were chosen.

    >>> released_settings_in_use({"method": "tda", "adapt.cache_alpha": None, "adapt.cache_beta": 3.0}, ["dtd"])
    {'not said': ['adapt.cache_alpha']}
    """
    row = catalogue.METHODS.get(str(config.get("method")))
    if row is None:  # the method of a plugin that is not loaded
        return {}
    in_use: dict[HowChosen, list[str]] = {}
    defaults = _default_settings()
    for setting in released_settings().get(row.name, []):
        # a setting with one value for all datasets has its released value as the default of the config
        values_not_set_by_user = (*OPEN_VALUES, defaults[setting.key])
        if setting.key in config and config[setting.key] in values_not_set_by_user:
            chosen = _how_chosen_on(datasets, setting.chosen, setting.datasets)
            in_use.setdefault(chosen, []).append(setting.key)
    if row.templates_of(config.get("adapt.templates")) == "released":
        chosen = _how_chosen_on(datasets, "not said", released_templates())
        in_use.setdefault(chosen, []).append("adapt.templates")
    return in_use


@cache
def _default_settings() -> dict[str, Any]:
    return TrialConfig().flat()


def _how_chosen_on(datasets: Collection[str], chosen: HowChosen, datasets_with_value: Collection[str]) -> HowChosen:
    """Return how a setting's value was chosen on some datasets: `ours` if no value is released for any of them.

    A table with one dataset or none has an exception at most: the released value of all other datasets is in the code.
    """
    depends_on_dataset = len(datasets_with_value) > 1
    has_released_value = not set(datasets_with_value).isdisjoint(datasets)
    if chosen == "not said" and depends_on_dataset and not has_released_value:
        return "ours"
    return chosen


# ------------------------------------------------------------ settings of FPP, and the baselines


def preset_for(name: str, model: str) -> str:
    """Return the preset that `auto` stands for with a model."""
    if name != "auto":
        return name
    if model == "tiny":
        return "tiny"
    return "code"


def published_points(preset: str) -> dict[str, dict[str, Any]]:
    """Return the settings that the released code and the paper have, where these differ from each other.

    On the embedded model both keep what its preset has for its sizes and its embeddings; its gamma2 is the paper's.

    >>> published_points("tiny")["code"]["fpp.gamma2"], published_points("tiny")["paper"]["fpp.gamma2"]
    (15.0, 0.15)
    """
    paper = PRESETS["paper"]
    defaults = TrialConfig().flat()
    code = {key: defaults[key] for key in paper}
    sizes = {}
    if preset == "tiny":
        sizes = {key: value for key, value in PRESETS["tiny"].items() if key not in paper}
    return {"code": {**sizes, **code}, "paper": {**sizes, **paper}}


def baseline_configs(names: Iterable[str], start: TrialConfig, preset: str) -> dict[str, TrialConfig]:
    """Return baselines by name. Their prompts are words or published, all else is as in trials."""
    shared = {}
    for key, value in start.flat().items():
        if key.startswith(("adapt.", "views.", "measure.", "anchor_prompt", "precision")):
            shared[key] = value
    settings_of = {}
    for origin, settings in published_points(preset).items():
        settings_of[f"fpp_{origin}"] = {**settings, **shared}
    for method in catalogue.METHODS:
        settings_of[method] = {**shared, "method": method, "prompt": start.anchor_prompt}
    configs = {}
    for name in names:
        configs[name] = TrialConfig().replace(settings_of[name])
    return configs
