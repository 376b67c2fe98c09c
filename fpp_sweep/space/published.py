"""FPP's settings as its code was released and as its paper has them, and what trials are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fpp_sweep.space.work import PUBLISHED
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import PRESETS, TrialConfig


def preset_for(name: str, model: str) -> str:
    """The preset that `auto` stands for with a model."""
    if name != "auto":
        return name
    return "tiny" if model == "tiny" else "code"


def published_points(preset: str) -> dict[str, dict[str, Any]]:
    """The released code's and the paper's settings, where they differ from each other or from `TrialConfig`'s defaults.

    On the embedded model both keep what its preset has for its sizes and its embeddings; its gamma2 is the paper's.

    >>> published_points("tiny")["code"]["fpp.gamma2"], published_points("tiny")["paper"]["fpp.gamma2"]
    (15.0, 0.15)
    """
    paper, defaults = PRESETS["paper"], TrialConfig().flat()
    code = {key: defaults[key] for key in paper}
    sizes = {key: value for key, value in PRESETS["tiny"].items() if key not in paper} if preset == "tiny" else {}
    return {"code": {**sizes, **code}, "paper": {**sizes, **paper}}


def baseline_configs(names: Iterable[str], start: TrialConfig, preset: str) -> dict[str, TrialConfig]:
    """Baselines by name: they adapt and look at images as trials do, and their prompts are words or published."""
    flat = start.flat()
    read = ("adapt.", "views.", "anchor_prompt", "deep_prompts", "precision")
    shared = {key: value for key, value in flat.items() if key.startswith(read)}
    points = published_points(preset)
    configs = {f"fpp_{origin}": TrialConfig().replace(points[origin]).replace(shared) for origin in PUBLISHED}
    configs |= {
        name: TrialConfig().replace({**shared, "method": name, "prompt": start.anchor_prompt})
        for name in catalogue.METHODS
    }
    return {name: configs[name] for name in names}
