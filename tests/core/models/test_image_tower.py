"""The image tower whose last block computes the class token alone: equal features, less work, and keys that name it."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fpp_sweep.core.compute import computing
from fpp_sweep.core.images.features import FeatureCache
from fpp_sweep.core.models.clip import ClassTokenBlock, Preprocess, digest_weights, shorten_last_block
from fpp_sweep.spec.config import ViewConfig
from tests.kit.datasets import painted_dataset
from tests.kit.models import SMALL_SETTINGS, small_clip, small_vit

PIXELS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
OTHER_TOWERS = {
    "mean of all tokens": {"pool_type": "avg"},
    "attentional pooling": {"attentional_pool": True, "attn_pooler_queries": 2},
    "blocks of another kind": {"block_type": "custom"},
    "ResNet": {"layers": [1, 1, 1, 1], "width": 16, "patch_size": None},
}


def tower(**vision):
    return small_clip(vision_cfg={**SMALL_SETTINGS["vision_cfg"], **vision}).visual.requires_grad_(False)


def features(visual, precision="float32"):
    with computing(precision, torch.device("cpu")), torch.no_grad():
        return F.normalize(visual(PIXELS).float(), dim=-1)


def is_shortened(visual):
    return any(isinstance(module, ClassTokenBlock) for module in visual.modules())


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-6), ("fp16", 2e-3)])
@pytest.mark.parametrize(
    "vision",
    [{}, {"layers": 1}, {"final_ln_after_pool": True}, {"ls_init_value": 0.1}, {"no_ln_pre": True}],
    ids=lambda vision: next(iter(vision), "CLIP's"),
)
def test_features_of_the_short_last_block_equal_those_of_the_whole_block(vision, precision, tolerance):
    expected = features(tower(**vision), precision)
    visual = shorten_last_block(tower(**vision))
    assert is_shortened(visual)
    torch.testing.assert_close(features(visual, precision), expected, atol=tolerance, rtol=0)


def test_the_last_block_computes_its_mlp_for_the_class_token_alone():
    visual, token_counts = shorten_last_block(tower()), []

    def record_tokens(module, inputs, output):
        token_counts.append(inputs[0].shape[1])

    blocks = visual.transformer.resblocks
    for block in (blocks[0], blocks[-1].block):
        block.mlp.register_forward_hook(record_tokens)
        block.ln_1.register_forward_hook(record_tokens)
    features(visual)
    assert token_counts == [5, 5, 5, 1]


@pytest.mark.parametrize("vision", OTHER_TOWERS.values(), ids=OTHER_TOWERS)
def test_towers_that_use_other_tokens_or_blocks_are_unchanged(vision):
    whole = tower(**vision)(PIXELS)
    visual = shorten_last_block(tower(**vision))
    assert not is_shortened(visual)
    assert torch.equal(visual(PIXELS), whole)


def test_the_short_last_block_does_not_change_the_image_digest():
    vision = {**SMALL_SETTINGS["vision_cfg"], "layers": 3}
    state = small_clip(vision_cfg=vision, quick_gelu=True).visual.state_dict()
    properties = [json.dumps(vision, sort_keys=True), "QuickGELU", Preprocess(size=32)]
    assert small_vit().image_digest == digest_weights(properties, state)


def test_features_of_the_whole_block_have_another_key(tmp_path):
    """Features of the whole block and of the short block can be in one cache."""
    short, views = small_vit(), ViewConfig(count=3)
    vision = {**SMALL_SETTINGS["vision_cfg"], "layers": 3}
    whole = replace(short, visual=small_clip(vision_cfg=vision, quick_gelu=True).visual)
    assert (whole.arithmetic_suffix, short.arithmetic_suffix) == ("", ", class token alone")
    for clip in (whole, short):
        FeatureCache(tmp_path).features(clip, painted_dataset(3), views, 0)
    assert isinstance(whole.visual, nn.Module)
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("features/*/manifest.json")]
    assert sorted(manifest["compute"] for manifest in manifests) == [
        "float32 on cpu",
        "float32 on cpu, class token alone",
    ]
