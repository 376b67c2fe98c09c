"""Released settings by method and dataset: values for settings that a user leaves open, and how they were chosen."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import AdaptConfig, TrialConfig

FILE = Path(__file__).with_name("released_settings.toml")
TEMPLATES_FILE = Path(__file__).with_name("released_templates.toml")
OTHER_TEMPLATES = "simple"  # of datasets without released templates; ours, as on ImageNet

Chosen = Literal["fixed", "not said", "tuned on test", "unpublished"]
OPEN = (None, "auto")  # values of a setting that a released value replaces


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedSetting:
    """A setting of a method with its released values."""

    key: str
    chosen: Chosen
    default: Any  # for datasets without a released value; None: there is no value that depends on the dataset
    datasets: Mapping[str, Any]

    def value(self, dataset: str) -> Any:
        """Return the value on a dataset; None if the setting stays as it is."""
        return self.datasets.get(dataset, self.default)


@cache
def released_settings() -> dict[str, list[ReleasedSetting]]:
    """Return the released settings by method.

    >>> [setting.key for setting in released_settings()["tda"]]
    ['adapt.cache_alpha', 'adapt.cache_beta']
    """
    tables = tomllib.loads(FILE.read_text())
    settings = {}
    for method, entries in tables.items():
        settings[method] = [_read(tables, key, entry) for key, entry in entries.items()]
    return settings


def _read(tables: Mapping[str, Any], key: str, entry: Mapping[str, Any]) -> ReleasedSetting:
    if "same_as" in entry:
        return _read(tables, key, tables[entry["same_as"]][key])
    assert entry["chosen"] in get_args(Chosen), f"{FILE.name}: {key}: chosen = {entry['chosen']!r}"
    return ReleasedSetting(
        key=key, chosen=entry["chosen"], default=entry.get("value"), datasets=entry.get("datasets", {})
    )


def fill_released(method: str, dataset: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key with released values where they are open; `method` is a row's `released`.

    >>> fill_released("tda", "pets", {"adapt.cache_alpha": None, "adapt.cache_beta": 3.0})
    {'adapt.cache_alpha': 2.0, 'adapt.cache_beta': 3.0}
    """
    filled = dict(settings)
    for setting in released_settings().get(method, []):
        value = setting.value(dataset)
        is_open = setting.key in filled and filled[setting.key] in OPEN
        if value is not None and is_open:
            filled[setting.key] = value
    return filled


def with_released(method: str, dataset: str, adapt: AdaptConfig) -> AdaptConfig:
    """Return the config with a method's released values on a dataset where it leaves settings open."""
    settings = {f"adapt.{name}": getattr(adapt, name) for name in AdaptConfig.__dataclass_fields__}
    changes = {}
    for key, value in fill_released(method, dataset, settings).items():
        if value != settings[key]:
            changes[key.removeprefix("adapt.")] = value
    return dataclasses.replace(adapt, **changes)


def keys_without_released_value(method: str, dataset: str) -> list[str]:
    """Return the settings that have released values on other datasets, but not on this one.

    >>> keys_without_released_value("tda", "scenes"), keys_without_released_value("tda", "pets")
    (['adapt.cache_alpha', 'adapt.cache_beta'], [])
    """
    missing = []
    for setting in released_settings().get(method, []):
        if setting.chosen != "fixed" and setting.default is not None and dataset not in setting.datasets:
            missing.append(setting.key)
    return missing


@cache
def released_templates() -> dict[str, str | list[str]]:
    """Return the released templates by dataset: a list of them, or the name of a list of open_clip."""
    return tomllib.loads(TEMPLATES_FILE.read_text())


def resolved_templates(templates: str, dataset: str) -> str | list[str]:
    """Return the templates that `adapt.templates` stands for on a dataset.

    >>> resolved_templates("released", "dtd"), resolved_templates("released", "cars")
    (['{} texture.'], 'simple')
    """
    if templates != "released":
        return templates
    return released_templates().get(dataset, OTHER_TEMPLATES)


def settings_in_use(config: Mapping[str, Any], datasets: Collection[str]) -> dict[Chosen, list[str]]:
    """Return the settings that a config leaves at the values of the released program, by how these were chosen.

    Where a program has a value for each dataset and none for these datasets, the value is ours: `unpublished`.

    >>> settings_in_use({"method": "tda", "adapt.cache_alpha": None, "adapt.cache_beta": 3.0}, ["dtd"])
    {'not said': ['adapt.cache_alpha']}
    """
    row = catalogue.METHODS.get(str(config.get("method")))  # a plugin's method may not be loaded
    in_use: dict[Chosen, list[str]] = {}
    if row is None:
        return in_use
    defaults = TrialConfig().flat()
    for setting in released_settings().get(row.released, []):
        if setting.key in config and config[setting.key] in (*OPEN, defaults[setting.key]):
            in_use.setdefault(_chosen_on(setting.chosen, setting.datasets, datasets), []).append(setting.key)
    if row.templates_of(config.get("adapt.templates")) == "released":
        chosen = _chosen_on("not said", released_templates(), datasets)
        in_use.setdefault(chosen, []).append("adapt.templates")
    return in_use


def _chosen_on(chosen: Chosen, released: Collection[str], datasets: Collection[str]) -> Chosen:
    """Return how a value was chosen that is released for some datasets; for none of these datasets, it is ours."""
    if chosen == "not said" and len(released) > 1 and not set(released).intersection(datasets):
        return "unpublished"
    return chosen
