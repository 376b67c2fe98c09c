"""The settings of FPP that its code and its paper publish, and the configs that trials are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fpp_sweep.space.work import PUBLISHED
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import PRESETS, TrialConfig


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
    """Return baselines by name. They adapt and draw views as trials do; their prompts are words or published."""
    shared = {}
    for key, value in start.flat().items():
        if key.startswith(("adapt.", "views.", "anchor_prompt", "precision")):
            shared[key] = value
    settings_of = {}
    for origin in PUBLISHED:
        settings_of[f"fpp_{origin}"] = {**published_points(preset)[origin], **shared}
    for method in catalogue.METHODS:
        settings_of[method] = {**shared, "method": method, "prompt": start.anchor_prompt}
    configs = {}
    for name in names:
        configs[name] = TrialConfig().replace(settings_of[name])
    return configs
