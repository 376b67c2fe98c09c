"""A frozen `Clip` from a model of open_clip. This module imports open_clip, which takes ten seconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from open_clip.tokenizer import SimpleTokenizer
from open_clip.transformer import QuickGELU
from torch import Tensor, nn

from fpp_sweep.core.models.clip import Clip, Preprocess
from fpp_sweep.core.models.image_tower import shorten_last_block
from fpp_sweep.core.text.tower import Activation, TextTower


class BpeTokenizer:
    """CLIP's tokenizer: open_clip's, cleaning (ftfy, HTML, spaces, lower case) included."""

    def __init__(self) -> None:
        self._tokenizer = SimpleTokenizer()
        self.sos: int = self._tokenizer.sot_token_id
        self.eot: int = self._tokenizer.eot_token_id
        self.vocabulary: int = self._tokenizer.vocab_size

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))


def make_clip(
    *,
    name: str,
    model: Any,
    vision: Mapping[str, Any],
    tokenizer: BpeTokenizer,
    preprocess: Preprocess,
    embedding_scale: float,
    device: str,
) -> Clip:
    """Freeze a model and describe it; `vision` are the settings of its image tower, which enter its digest."""
    model = model.float().eval().requires_grad_(False)
    text = getattr(model, "text", model)
    activation = _activation(text)
    heads = text.transformer.resblocks[0].attn.num_heads
    text_state = {key: value for key, value in text.state_dict().items() if not key.startswith("visual.")}
    vision_facts = [json.dumps(vision, sort_keys=True), activation, preprocess]
    image_digest = digest_weights(vision_facts, model.visual.state_dict())
    all_but_image = {**text_state, "logit_scale": model.logit_scale}
    return Clip(
        name=name,
        visual=shorten_last_block(model.visual).to(device),
        text=TextTower.from_state(text_state, heads=heads, activation=activation).to(device),
        tokenizer=tokenizer,
        logit_scale=model.logit_scale.exp().item(),
        preprocess=preprocess,
        embedding_scale=embedding_scale,
        image_digest=image_digest,
        digest=digest_weights([image_digest, activation, heads], all_but_image),
    )


def _activation(text: nn.Module) -> Activation:
    """Return the activation of the modules that were built, which is what they compute."""
    transformer: Any = text.transformer
    if isinstance(transformer.resblocks[0].mlp.gelu, QuickGELU):
        return "quick_gelu"
    return "gelu"


def digest_weights(properties: list[object], weights: Mapping[str, Tensor]) -> str:
    """Return a hash of weights and of other properties that determine what they compute."""
    with ThreadPoolExecutor() as threads:  # hashing releases the interpreter lock
        parts = list(threads.map(_digest_weight, sorted(weights.items())))
    return hashlib.sha256(repr([properties, parts]).encode()).hexdigest()


def _digest_weight(named_weight: tuple[str, Tensor]) -> tuple[str, str, tuple[int, ...], str]:
    name, weight = named_weight
    content = weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return name, str(weight.dtype), tuple(weight.shape), hashlib.sha256(content).hexdigest()
