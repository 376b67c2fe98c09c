"""Trials from a MaPLe checkpoint: with its shallow prompt, with the deep prompts of the text tower, and with all."""

from functools import cache

import numpy as np
import pytest
import torch

from fpp_sweep.core.prompt import from_bytes, open_prompt, origin_of
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import TextSource
from tests.kit.models import save_maple, small_vit
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.tasks import evaluation
from tests.kit.workers import inline, plan_of

FORMS = ("none", "text", "both")
SETTINGS = {"views.count": 4, "adapt.view_fraction": 0.5, "fpp.steps": 4}


@pytest.fixture(scope="module")
def vit(make_worker):
    """A worker on a small CLIP whose image tower is a ViT."""
    worker = make_worker(limit=20)
    worker.model.clip = cache(small_vit)()
    return worker


@pytest.fixture(scope="module")
def maple(tmp_path_factory):
    return str(save_maple(tmp_path_factory.mktemp("maple") / "model.pth.tar-2"))


def compute(worker, folder, **config):
    """Return predictions on a few digits, and the prompt if one is pretrained."""
    executor = inline(worker, plan_of(worker), folder)
    task = evaluation(dataset="digits", stop=20, **{"method": TPT, **SETTINGS, **config})
    if task.pretrain is None:
        results = dict(executor.results([task]))
        return results[task].read_predictions(), None
    results = dict(executor.results([task.pretrain, task]))
    return results[task].read_predictions(), results[task.pretrain].prompt


def differ(one, other):
    return np.abs(one.confidence - other.confidence).max() > 1e-4


@pytest.mark.parametrize("method", [ZERO_SHOT, TPT])
def test_each_use_of_a_checkpoint_gives_different_results(vit, maple, tmp_path, method):
    none, text, both = (compute(vit, tmp_path, method=method, prompt=maple, deep_prompts=deep)[0] for deep in FORMS)
    assert differ(none, text)
    assert differ(text, both)
    assert differ(none, both)


def test_images_with_visual_prompts_are_cached_separately(vit, maple, tmp_path):
    configs = [evaluation(prompt=maple, deep_prompts=deep).config for deep in FORMS]
    none, text, both = (vit.model.clip_for(config) for config in configs)
    assert none is vit.clip
    assert none.image_digest == text.image_digest != both.image_digest
    assert vit.model.clip_for(configs[2]) is both
    through_fpp = evaluation(prompt="fpp", anchor_prompt=maple, deep_prompts="both").config
    assert vit.model.clip_for(through_fpp) is both
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(none.image_features(pixels), text.image_features(pixels))
    assert not torch.allclose(none.image_features(pixels), both.image_features(pixels), atol=1e-3)


@pytest.mark.parametrize("deep", FORMS)
def test_fpp_starts_from_a_checkpoint_and_its_prompt_can_be_reused(vit, maple, tmp_path, deep):
    found, data = compute(vit, tmp_path, prompt="fpp", anchor_prompt=maple, deep_prompts=deep)
    learned, start = from_bytes(vit.clip, data), open_prompt(vit.clip, maple)
    assert learned.context.shape == start.context.shape
    assert not torch.equal(learned.context, start.context)
    assert learned.after == "of a"
    assert (learned.deep is None) == (deep == "none")
    assert origin_of(data)["deep_prompts"] == deep
    file = tmp_path / "learned.safetensors"
    file.write_bytes(data)
    again, _ = compute(vit, tmp_path, prompt=str(file), deep_prompts=deep)
    assert (again.confidence == found.confidence).all()
    for other in set(FORMS) - {deep}:
        with pytest.raises(
            InputError, match=f"was learned with deep_prompts={deep}, not {other}; set deep_prompts={deep}"
        ):
            vit.check([TextSource(str(file), other)], [])


@pytest.mark.parametrize("source", ["gaussian", "imagenet"])
def test_fpp_on_a_checkpoint_takes_other_class_names(vit, maple, tmp_path, source):
    changes = {"fpp.class_source": source, "fpp.steps": 1, "fpp.draws": 1, "deep_prompts": "text"}
    _, data = compute(vit, tmp_path, method=ZERO_SHOT, prompt="fpp", anchor_prompt=maple, **changes)
    assert from_bytes(vit.clip, data).context.isfinite().all()


def test_a_checkpoints_content_and_use_are_part_of_keys(vit, tmp_path):
    file = str(tmp_path / "model.pth.tar-2")
    tasks = [evaluation(dataset="digits", prompt=file, deep_prompts=deep) for deep in FORMS]
    tasks += [evaluation(dataset="digits", prompt="fpp", anchor_prompt=file, deep_prompts=deep) for deep in FORMS]
    known = plan_of(vit).datasets_by_key()

    def keys(**changes):
        save_maple(tmp_path / "model.pth.tar-2", **changes)
        sources = [TextSource(file, deep) for deep in FORMS]
        task_keys = TaskKeys(vit.model_info(), known, vit.check(sources, []).prompts)
        with_pretraining = [*tasks, *(task.pretrain for task in tasks if task.pretrain)]
        return {task_keys.of(task) for task in with_pretraining}

    first = keys()
    assert len(first) == 9
    assert keys() == first
    for changes in (
        {"compound_prompts_text__1": torch.zeros(2, 64)},
        {"compound_prompt_projections__0__bias": torch.zeros(64)},
        {"proj__weight": torch.zeros(64, 64)},
    ):
        assert not keys(**changes) & first
    assert keys(token_suffix=torch.ones(3, 74, 64)) == first  # this entry of a checkpoint is not read


def test_an_image_tower_without_prompts_is_refused_before_any_work(small, tmp_path):
    width = small.clip.text.width
    file = str(save_maple(tmp_path / "model.pth.tar-2", width=width))
    small.check([TextSource(file), TextSource(file, "text")], [])
    with pytest.raises(InputError, match="the image tower of tiny is not CLIP's ViT, which deep_prompts=both needs"):
        small.check([TextSource(file, "both")], [])
