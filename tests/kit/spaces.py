"""Search spaces, and the datasets and speeds of a dry run."""

from typing import Any

from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.specs import ModelInfo
from tests.kit.names import named
from tests.kit.tasks import dataset_info

SMALL_SPACE = "params: {fpp.gamma1: {low: 0.1, high: 10}}\nwork: {datasets: [scenes, digits], limit: 5}"
TWO_DATASETS = named("""
base: {fpp.steps: 3, views.count: 4, adapt.view_fraction: 0.5}
params:
  fpp.gamma1: {low: 0.1, high: 10, log: true}
  method: [tpt, otpt]
  adapt.penalty_weight: {low: 1, high: 30, when: {method: otpt}}
search: {trials: 6}
work: {datasets: [scenes, digits], limit: 100, baselines: [zero_shot, tpt], workers: 2}
""")
ONE_DATASET = named("""
base: {fpp.steps: 3, views.count: 4, adapt.view_fraction: 0.5}
params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}
search: {trials: 6}
work: {datasets: [dtd], baselines: [zero_shot, tpt]}
""")
HERE: dict[str, Any] = {"device": "cpu", "arithmetic": "", "node": "here", "pid": 1}
MODEL_INFO = ModelInfo(name="none", digest="none", embedding_scale=1.0, **HERE)
DATASET_INFOS = {"val": (dataset_info("dtd", "val", 100),), "test": (dataset_info("dtd", "test", 60),)}

SEARCH_VIEWS = "params={views.min_area: [0.2, 0.3]}"  # an override: a setting that trials without FPP read, too


def small_space(*overrides):
    """Return a space of one setting, five images and two datasets, with overrides."""
    return parse_space(SMALL_SPACE, "space.yaml", overrides)
