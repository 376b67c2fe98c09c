"""`doctor --device`: a CPU compared with itself, and with computations that a test breaks."""

from dataclasses import replace

import pytest
import torch

from fpp_sweep import doctor
from fpp_sweep.core.methods.gradients import ByJacobian, first_gradient
from fpp_sweep.core.models.clip import Clip, load
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.spec import catalogue
from fpp_sweep.trial.prompts import prompt_model
from fpp_sweep.trial.selfcheck import Comparison, Inputs, comparisons

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def reference():
    return load("tiny", "cpu")


@pytest.fixture(scope="module")
def inputs(reference):
    return Inputs(reference)


@pytest.fixture
def few_methods(monkeypatch):
    monkeypatch.setattr(catalogue, "BUILT_IN", ("zero_shot", "tpt", "tda"))


def test_doctor_compares_every_part_with_the_cpu(few_methods, capsys):
    doctor.main(["--device", "cpu"])
    _, *lines = capsys.readouterr().out.splitlines()
    names = [line.partition("  ")[0] for line in lines]
    for part in ("views", "image tower, float32", "text tower, fp16", "zero_shot", "tda", "pretraining, letters"):
        assert part in names
    assert all(" passed " in line for line in lines)


def test_doctor_exits_with_1_if_a_result_differs(few_methods, capsys, monkeypatch):
    image_features = Clip.image_features
    calls = []

    def drift(clip, pixels):
        calls.append(len(pixels))
        return image_features(clip, pixels) * (1 + 1e-4 * len(calls))

    monkeypatch.setattr(Clip, "image_features", drift)
    with pytest.raises(SystemExit) as ended:
        doctor.main(["--device", "cpu"])
    assert ended.value.code == 1
    assert "failed: image tower, float32; compute with work.device=cpu" in capsys.readouterr().out


def test_other_weights_fail_towers_methods_and_pretraining(few_methods, inputs, reference):
    visual = load("tiny", "cpu").visual
    with torch.no_grad():
        next(visual.parameters()).mul_(1.001)
    weight, bias = reference.text.projection
    text = replace(reference.text, projection=(weight + 1e-2 * torch.eye(*weight.shape), bias))
    preprocess = replace(reference.preprocess, mean=(0.4815, 0.4578, 0.4082))
    device = replace(reference, visual=visual, text=text, preprocess=preprocess)
    results = [comparison.result(device, reference) for comparison in comparisons(inputs, CPU)]
    assert {result.name for result in results if result.passed} <= {"image tower, fp16", "text tower, fp16"}


def test_errors_and_numbers_that_are_not_finite_fail(reference):
    def fail(clip):
        if clip is not reference:
            raise RuntimeError("no kernel")
        return torch.zeros(1)

    def nan(clip):
        return torch.tensor([0.0 if clip is reference else float("nan")])

    failed = Comparison("tpt", fail, 1.0).result(replace(reference), reference)
    assert not failed.passed
    assert "no kernel" in str(failed)
    assert not Comparison("tpt", nan, 1.0).result(replace(reference), reference).passed


def test_both_forms_of_the_first_gradient_are_compared(inputs, reference):
    prompt = open_prompt(reference, inputs.config.anchor_prompt)
    texts = prompt_model(reference, prompt, inputs.few_classes).texts
    pays = [
        isinstance(first_gradient(texts, prompt.context, samples), ByJacobian)
        for samples in (8, len(inputs.few_classes))
    ]
    assert pays == [False, True]
