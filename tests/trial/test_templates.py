"""Templates of a trial: built-in lists, released templates, files, refused input, and the methods that use them."""

import json
import logging
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.core.datasets.catalogue import DATASETS
from fpp_sweep.core.prompt import from_words, open_prompt
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.released import released_templates
from fpp_sweep.spec.specs import TextSource
from fpp_sweep.trial.adapting import make_adapter
from fpp_sweep.trial.prompts import texts_by_class
from fpp_sweep.trial.trial import run_trial
from tests.kit.workers import inline, plan_of

SHIFTS = {"imagenet", "imagenet_a", "imagenet_r", "imagenet_sketch", "imagenet_v2"}


def write_templates(folder, content):
    path = folder / "templates.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_the_built_in_lists_are_open_clips_with_the_class_name_filled_in():
    assert texts_by_class("simple", "dtd", ["striped", "polka_dotted"])[1][:2] == [
        "itap of a polka dotted.",
        "a bad photo of the polka dotted.",
    ]
    assert [len(texts) for texts in texts_by_class("openai", "dtd", ["striped", "dotted"])] == [80, 80]


def test_every_dataset_of_the_papers_has_released_templates():
    fine_grained = {name for name in DATASETS if DATASETS[name].group == "fine_grained"}
    assert set(released_templates()) == fine_grained | SHIFTS
    assert texts_by_class("released", "dtd", ["striped"]) == [["striped texture."]]
    assert texts_by_class("released", "ucf101", ["Apply_Eye_Makeup"]) == [
        ["a photo of a person doing Apply Eye Makeup."]
    ]
    assert texts_by_class("released", "cars", ["BMW"]) == texts_by_class("simple", "cars", ["BMW"])
    assert texts_by_class("released", "imagenet_r", ["goldfish"]) == texts_by_class("openai", "dtd", ["goldfish"])


def test_a_dataset_without_released_templates_gets_the_simple_ones_and_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        texts = texts_by_class("released", "my_set", ["cat"])
    assert texts == texts_by_class("simple", "my_set", ["cat"])
    assert [record.getMessage() for record in caplog.records] == [
        "my_set: no templates are released for this dataset; uses those of simple"
    ]


def test_a_file_has_templates_for_all_classes_or_texts_for_each(tmp_path):
    templates = write_templates(tmp_path, ["a photo of a {}.", "{} texture."])
    assert texts_by_class(templates, "x", ["big_cat"]) == [["a photo of a big cat.", "big cat texture."]]
    by_class = write_templates(
        tmp_path, {"big cat": ["a {} with fur"], "dog": ["it barks", "a pet"], "ox": ["it pulls"]}
    )
    assert texts_by_class(by_class, "x", ["dog", "big_cat"]) == [["it barks", "a pet"], ["a big cat with fur"]]


WRONG_FILES = {
    "{": "not a readable JSON file",
    '"a photo of a {}."': r'must be a list of texts, such as \["a photo of a {}."\]',
    "[]": "must be a list of texts",
    '["a photo"]': r"a template needs {} once, for the class name \(entry 1 has 0\)",
    '["{} and {}"]': "a template needs {} once",
    '["a {}", 3]': "entry 2 is empty or not a text; take it out",
    '{"dog": ["a pet"]}': "has no texts for class 'cat' of x; add them",
    '{"dog": ["a pet"], "cat": []}': "class 'cat': must be a list of texts",
    '{"dog": ["a pet"], "cat": [" "]}': "class 'cat': entry 1 is empty or not a text; take it out",
}


@pytest.mark.parametrize("content", WRONG_FILES)
def test_a_wrong_file_is_refused(tmp_path, content):
    with pytest.raises(InputError, match=WRONG_FILES[content]) as raised:
        texts_by_class(write_templates(tmp_path, content), "x", ["dog", "cat"])
    assert "templates.json" in str(raised.value)


def test_a_worker_checks_template_files_against_the_classes(small, tmp_path):
    (info,) = small.describe(["digits"], "val")
    path = write_templates(tmp_path, {name: [f"the digit {name}"] for name in info.classes})
    validation = small.check([TextSource("", templates=path)], [info])
    assert list(validation.prompts) == [path]
    write_templates(tmp_path, {name: [f"the digit {name}"] for name in info.classes[1:]})
    with pytest.raises(InputError, match=f"has no texts for class '{info.classes[0]}' of digits; add them"):
        small.check([TextSource("", templates=path)], [info])


def adapter_for(small, method, templates, prompt=None):
    images = open_dataset("digits", "val").head(4)
    config = TrialConfig(method=method, prompt="a photo of a").replace({"adapt.templates": templates})
    return make_adapter(small.clip, config, images, prompt)


@pytest.mark.parametrize("method", ["zero_shot_ensemble", "zero", "mta", "tps"])
def test_one_template_equals_the_prompt_with_the_same_words(small, tmp_path, method):
    ensemble = adapter_for(small, method, write_templates(tmp_path, ["a photo of a {}."])).state.features
    prompt = adapter_for(small, method, None, open_prompt(small.clip, "a photo of a")).state.features
    torch.testing.assert_close(ensemble, prompt, atol=1e-5, rtol=0)


def test_several_templates_equal_the_normalised_mean_of_prompts(small, tmp_path):
    words = ["a photo of a", "a drawing of the"]
    file = write_templates(tmp_path, [f"{phrase} {{}}." for phrase in words])
    ensemble = adapter_for(small, "tda", file).state.classifier.features
    prompts = []
    for phrase in words:
        prompts.append(adapter_for(small, "zero_shot", None, from_words(small.clip, phrase)).state.features)
    torch.testing.assert_close(ensemble, F.normalize(sum(prompts), dim=-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", ["zero_shot_ensemble", "zero", "tda"])
def test_a_trial_with_templates_runs_and_differs_from_its_prompt(make_worker, tmp_path, method):
    worker = make_worker(limit=60)
    plan = replace(plan_of(worker, columns=("logits",)), posthoc=("temperature_oracle",))
    executor = inline(worker, plan, tmp_path)
    config = TrialConfig(method=method, prompt="fpp").replace({"adapt.templates": "simple", "views.count": 4})
    result, (digits,) = run_trial(plan, config, "val", executor)
    assert digits.prompt is None
    assert "ece@temperature_oracle" in result.average
    words = TrialConfig(method=method.replace("_ensemble", ""), prompt="a photo of a").replace({"views.count": 4})
    _, (other,) = run_trial(plan, words, "val", executor)
    assert (digits.predictions.confidence != other.predictions.confidence).any()
