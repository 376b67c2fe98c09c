"""Trials from the context of a MaPLe checkpoint."""

from functools import cache

import pytest
import torch

from fpp_sweep.core.prompt import from_bytes, open_prompt
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import TextSource
from tests.kit.models import save_maple, small_vit
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.tasks import evaluation
from tests.kit.workers import inline, plan_of

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


def test_fpp_starts_from_a_checkpoint_and_its_prompt_can_be_reused(vit, maple, tmp_path):
    found, data = compute(vit, tmp_path, prompt="fpp", anchor_prompt=maple)
    learned, start = from_bytes(vit.clip, data), open_prompt(vit.clip, maple)
    assert learned.context.shape == start.context.shape
    assert not torch.equal(learned.context, start.context)
    assert learned.after == "of a"
    file = tmp_path / "learned.safetensors"
    file.write_bytes(data)
    again, _ = compute(vit, tmp_path, prompt=str(file))
    assert (again.confidence == found.confidence).all()


@pytest.mark.parametrize("source", ["gaussian", "imagenet"])
def test_fpp_on_a_checkpoint_takes_other_class_names(vit, maple, tmp_path, source):
    changes = {"fpp.class_source": source, "fpp.steps": 1, "fpp.draws": 1}
    _, data = compute(vit, tmp_path, method=ZERO_SHOT, prompt="fpp", anchor_prompt=maple, **changes)
    assert from_bytes(vit.clip, data).context.isfinite().all()


def test_a_checkpoints_context_is_part_of_keys(vit, tmp_path):
    file = str(tmp_path / "model.pth.tar-2")
    through_fpp = evaluation(dataset="digits", prompt="fpp", anchor_prompt=file)
    tasks = [evaluation(dataset="digits", prompt=file), through_fpp, through_fpp.pretrain]
    known = plan_of(vit).datasets_by_key()

    def keys(**changes):
        save_maple(tmp_path / "model.pth.tar-2", **changes)
        task_keys = TaskKeys(vit.model_info(), known, vit.check([TextSource(file)], []).prompts)
        return {task_keys.of(task) for task in tasks}

    first = keys()
    assert len(first) == 3
    assert keys() == first
    assert not keys(ctx=torch.zeros(2, 64)) & first
    not_read = {"token_suffix": torch.ones(3, 74, 64), "compound_prompts_text__1": torch.zeros(2, 64)}
    assert keys(**not_read) == first
