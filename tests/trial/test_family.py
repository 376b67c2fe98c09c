"""View protocols, released settings and lists of the methods of docs/methods.md."""

from dataclasses import replace

import pytest

from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.core.methods import build_method
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import AdaptConfig, TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.released import with_released
from fpp_sweep.spec.tasks import views_for
from fpp_sweep.trial.adapting import make_adapter
from tests.kit.tasks import evaluation

CROPS, AUGMIX, ONE_VIEW, BY_DATASET = ("off", 64), ("on", 64), ("auto", 1), ("auto", 64)
PROTOCOLS = {  # AugMix and number of views on fine-grained, ImageNet, shifted and users' own datasets
    "zero": (CROPS, CROPS, CROPS, CROPS),
    "zero_mean": (CROPS, CROPS, CROPS, CROPS),
    "mta": (CROPS, CROPS, CROPS, CROPS),
    "tda": (ONE_VIEW, ONE_VIEW, AUGMIX, ONE_VIEW),
    "boostadapter": (CROPS, ONE_VIEW, CROPS, CROPS),
    "tps": (AUGMIX, CROPS, CROPS, BY_DATASET),
    "rtpt": (AUGMIX, CROPS, CROPS, BY_DATASET),
    "atpt": (BY_DATASET,) * 4,
    "tpt": (BY_DATASET,) * 4,
    "zero_shot": (ONE_VIEW,) * 4,
}
PAPER_ONLY = {
    "tpt_asam", "ctpt_asam", "otpt_asam", "tpt_ent_ent", "ctpt_ent_reg", "ctpt_reg_ent", "otpt_ent_reg", "otpt_reg_ent",
    "dynaprompt_ctpt", "dynaprompt_otpt", "otpt_squared",
}  # fmt: skip


@pytest.mark.parametrize("method", PROTOCOLS)
def test_views_are_those_of_the_released_programs(method):
    config = TrialConfig(method=method)
    actual = []
    for group in ("fine_grained", "imagenet", "shifts", "custom"):
        views = views_for(config, group)
        actual.append((views.augmix, views.count))
    assert tuple(actual) == PROTOCOLS[method]


def test_a_users_choice_of_augmix_overrides_the_protocol():
    for method in ("zero", "tps", "tda"):
        for augmix in ("on", "off"):
            config = TrialConfig(method=method).replace({"views.augmix": augmix})
            assert views_for(config, "shifts").augmix == augmix


def test_a_released_setting_replaces_only_unset_values():
    assert with_released("tda", "eurosat", AdaptConfig()).cache_beta == 8
    assert with_released("tda", "eurosat", AdaptConfig(cache_beta=1.0)).cache_beta == 1
    assert with_released("boostadapter", "imagenet_a", AdaptConfig()).boost_query == "views"
    assert with_released("boostadapter", "imagenet_a", AdaptConfig()).boost_delta == 3
    assert with_released("boostadapter", "dtd", AdaptConfig()).boost_delta == 0
    assert with_released("tpt", "dtd", AdaptConfig()) == AdaptConfig()


def test_a_dataset_without_released_settings_gets_defaults():
    method = build_method("tda", AdaptConfig(cache_alpha=3.25), "tiny", "scenes")
    assert (method.adapt.cache_alpha, method.adapt.cache_beta) == (3.25, 5.0)


def test_features_are_computed_once_for_each_protocol(make_worker, tmp_path):
    worker = make_worker(limit=8, cache=str(tmp_path))
    computed = {}
    for method in ("zero", "mta", "zero_mean", "tda", "zero_shot", "boostadapter", "tpt"):
        augmix = "on" if method == "tpt" else "auto"
        settings = {"views.count": 4, "views.augmix": augmix}
        result = worker.run(evaluation(dataset="digits", method=method, stop=8, **settings), [])
        computed[method] = int(result.features.get("images", 0))
    crops, plain, augmix = 8, 8, 8  # all images are rendered at the first use of a protocol
    assert computed == {
        "zero": crops, "mta": 0, "zero_mean": 0, "tda": plain, "zero_shot": 0, "boostadapter": 0, "tpt": augmix
    }  # fmt: skip


def test_an_adapter_has_the_released_settings_of_its_dataset(small):
    images = replace(open_dataset("digits", "val").head(4), name="eurosat")
    config = TrialConfig(method="tda", prompt="a photo of a")
    adapter = make_adapter(small.clip, config, images, open_prompt(small.clip, config.prompt))
    assert (adapter.method.adapt.cache_alpha, adapter.method.adapt.cache_beta) == (4.0, 8.0)


OUT_OF_BOUNDS = {
    "vote_fraction": (0.0, "> 0"),
    "cache_alpha": (-1.0, ">= 0"),
    "cache_beta": (-1.0, ">= 0"),
    "boost_delta": (-1, ">= 0"),
    "shift_lr": (-1.0, ">= 0"),
    "huber_delta": (0.0, "> 0"),
}


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_settings_out_of_bounds_are_refused(name):
    value, rule = OUT_OF_BOUNDS[name]
    with pytest.raises(InputError, match=f"adapt.{name}: must be {rule}"):
        TrialConfig().replace({f"adapt.{name}": value})


def test_methods_that_only_the_papers_tables_need_are_unlisted_but_usable():
    assert set(catalogue.METHODS) - set(catalogue.listed_methods()) == PAPER_ONLY
    for method in PAPER_ONLY:
        assert catalogue.method(method).name == method
    with pytest.raises(InputError) as raised:
        catalogue.method("qqqqqqqq")
    assert "asam" not in str(raised.value)
