"""Configs of trials: defaults, presets, refused values, units and keys."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpp_sweep.spec.config import PRESETS, AdaptConfig, FppConfig, MeasureConfig, TrialConfig, preset
from fpp_sweep.spec.errors import InputError


def test_the_defaults_are_the_released_code():
    config = TrialConfig()
    assert preset("code") == config
    assert (config.fpp.gamma1, config.fpp.gamma2, config.fpp.steps, config.fpp.draws) == (1, 15, 1000, 4)
    assert (config.adapt.lr, config.adapt.weight_decay, config.adapt.steps) == (5e-3, 0.01, 1)
    assert int(config.adapt.view_fraction * config.views.count) == 6


@pytest.mark.parametrize(("classes", "weight"), [(10, 2.5), (37, 1.4054), (47, 1.3191), (397, 1.0378)])
def test_lambda_depends_on_the_number_of_classes(classes, weight):
    assert FppConfig().flatness_weight(classes) == pytest.approx(weight, abs=5e-5)


def test_the_paper_preset_differs_where_paper_and_code_disagree():
    paper, code = preset("paper").flat(), preset("code").flat()
    assert {key for key in paper if paper[key] != code[key]} == set(PRESETS["paper"])


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("fpp.gama2=1", "unknown setting 'fpp.gama2', did you mean 'fpp.gamma2'?"),
        ("gamma2=1", "unknown setting 'gamma2', did you mean 'fpp.gamma2'?"),
        ("lr=1", "unknown setting 'lr', did you mean 'adapt.lr' or 'fpp.lr'?"),
        ("fpp.class_var=-0.1", "fpp.class_var: must be >= 0 ('-0.1')"),
        ("fpp.draws=0", "fpp.draws: must be >= 1 ('0')"),
        ("fpp.draws=2.5", "fpp.draws: must be a whole number ('2.5')"),
        ("fpp.gamma1=much", "fpp.gamma1: must be a number ('much')"),
        ("fpp.gamma1=\u0663", "fpp.gamma1: must be a number ('\u0663')"),
        ("fpp.draws=\uff11", "fpp.draws: must be a whole number ('\uff11')"),
        ("fpp.gamma1=none", "fpp.gamma1: must be a number ('none')"),
        ("fpp.gamma1=xx", "fpp.gamma1: must be a number ('xx')"),
        ("fpp.gamma1=nan", "fpp.gamma1: must be a finite number ('nan')"),
        ("fpp.draws=1e400", "fpp.draws: must be a whole number ('1e400')"),
        ("fpp.detach=nosy", "fpp.detach: unknown detach 'nosy', did you mean 'noisy'?"),
        ("fpp.noise_shared=perhaps", "fpp.noise_shared: must be true or false ('perhaps')"),
        ("adapt.view_fraction=0", "adapt.view_fraction: must be > 0 ('0')"),
        ("views.count=0", "views.count: must be >= 1 ('0')"),
        ("views.min_area=1.5", "views.min_area: must be <= 1 ('1.5')"),
        ("views.min_area=0", "views.min_area: must be > 0 ('0')"),
        ("precision=half", "precision: unknown precision 'half'; choose from float32, fp16, released, tf32"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line_with_its_key(word, line):
    key, value = word.split("=")
    with pytest.raises(InputError) as error:
        TrialConfig().replace({key: value})
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda: AdaptConfig(lr=float("inf")), "lr: must be a finite number (inf)"),
        (lambda: MeasureConfig(rho=0.0), "rho: must be > 0 (0.0)"),
        (lambda: FppConfig(align_distance="none", flat_distance="none"), "the loss has no term (fpp.align_distance an"),
    ],
)
def test_a_wrong_value_in_python_is_refused_with_its_key(build, line):
    with pytest.raises(InputError) as error:
        build()
    assert str(error.value).startswith(line)


def test_a_config_is_read_back_from_text_unchanged():
    config = preset("tiny").replace({"fpp.lambda_shifts": None, "prompt": "a sketch of a", "fpp.noise_shared": False})
    assert TrialConfig().replace({key: str(value).lower() for key, value in config.flat().items()}) == config


@given(st.floats(min_value=0.05, max_value=50), st.floats(min_value=0, max_value=1))
def test_scaling_keeps_weight_decay_per_step_and_scales_lengths(unit, variance):
    config = FppConfig(class_var=variance)
    scaled = config.scaled(unit)
    assert scaled.lr * scaled.weight_decay == pytest.approx(config.lr * config.weight_decay)
    assert scaled.class_var == pytest.approx(variance * unit**2)
    assert scaled.start_std == pytest.approx(config.start_std * unit)


def test_scaling_of_adaptation_keeps_weight_decay_per_step_and_scales_lengths():
    config = AdaptConfig(
        lr=0.01, weight_decay=0.3, steps=3, view_fraction=0.2, penalty_weight=7.0, sam_rho=0.1, asam_rho=0.7
    )
    # ASAM's radius is relative to the size of each coordinate, so it needs no scaling.
    assert config.scaled(2) == dataclasses.replace(config, lr=0.02, weight_decay=0.15, sam_rho=0.2)
    assert MeasureConfig(rho=0.5).scaled(2) == MeasureConfig(rho=1.0)
