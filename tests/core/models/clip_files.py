"""Small CLIPs in the file formats that real ones come in, made by the tests that read them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from fpp_sweep.core.models.clip import Clip, Preprocess

SMALL: dict[str, Any] = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "patch_size": 16, "layers": 2, "width": 64, "head_width": 32},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 4, "layers": 2},
}
OPENAI_SETTINGS = {"input_resolution": 32, "context_length": 77, "vocab_size": 49408}


def small_clip(*, seed: int = 0, **settings: Any) -> Any:
    """A CLIP of open_clip with random weights; `settings` replace those of SMALL."""
    from open_clip.model import CLIP

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CLIP(**{**SMALL, **settings}).eval()


def halved(*, seed: int = 0) -> Any:
    """A CLIP stored as OpenAI's conversion stores it: matrices in half precision, the rest in single."""
    from open_clip.model import convert_weights_to_fp16

    model = small_clip(seed=seed, quick_gelu=True, cast_dtype=torch.float16)
    convert_weights_to_fp16(model)
    return model


def save_openai_archive(path: Path, *, seed: int = 0, quick_gelu: bool = True) -> dict[str, torch.Tensor]:
    """A traced archive with OpenAI's three settings among its buffers; returns what `torch.jit` finds in it."""
    model = halved(seed=seed) if quick_gelu else small_clip(seed=seed)
    for name, value in OPENAI_SETTINGS.items():
        if hasattr(model, name):
            delattr(model, name)
        model.register_buffer(name, torch.tensor(value))
    image, text = torch.ones(1, 3, 32, 32, dtype=model.visual.conv1.weight.dtype), torch.zeros(1, 77, dtype=torch.int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing is deprecated, and is how OpenAI's archives were made
        inputs = {"forward": (image, text), "encode_image": (image,), "encode_text": (text,)}
        traced = torch.jit.trace_module(model, inputs, check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, path)
        state: dict[str, torch.Tensor] = torch.jit.load(path).state_dict()  # type: ignore[no-untyped-call]
    return state


def small_vit(**settings: Any) -> Clip:
    """A random CLIP whose image tower is open_clip's ViT, three blocks on either side, as workers hold one."""
    from fpp_sweep.core.models.building import BpeTokenizer, make_clip  # imports open_clip

    vision = {**SMALL["vision_cfg"], "layers": 3}
    model = small_clip(vision_cfg=vision, text_cfg={**SMALL["text_cfg"], "layers": 3}, quick_gelu=True, **settings)
    return make_clip(
        name="small-vit",
        model=model,
        vision=vision,
        tokenizer=BpeTokenizer(),
        preprocess=Preprocess(size=vision["image_size"]),
        embedding_scale=1.0,
        device="cpu",
    )


def save_maple(
    path: Path, *, width: int = 64, outside: int = 64, tokens: int = 2, depth: int = 3, seed: int = 0, **changes: Any
) -> Path:
    """A checkpoint in MaPLe's layout; `changes` replace tensors of its prompt learner, None takes one out.

    Its names have two underscores for a dot.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, half: bool = False) -> torch.Tensor:
        value = 0.2 * torch.randn(shape, generator=generator)
        return value.half() if half else value

    learner: dict[str, torch.Tensor | None] = {
        "ctx": normal(tokens, width, half=True),
        "token_prefix": torch.zeros(3, 1, width).half(),
        "token_suffix": torch.zeros(3, 76 - tokens, width).half(),
        "proj.weight": normal(outside, width, half=True),
        "proj.bias": normal(outside, half=True),
    }
    for index in range(depth - 1):
        learner[f"compound_prompts_text.{index}"] = normal(tokens, width)
        learner[f"compound_prompt_projections.{index}.weight"] = normal(outside, width)
        learner[f"compound_prompt_projections.{index}.bias"] = normal(outside)
    learner |= {name.replace("__", "."): value for name, value in changes.items()}
    state = {f"prompt_learner.{name}": value for name, value in learner.items() if value is not None}
    state |= {"logit_scale": torch.tensor(4.6), "image_encoder.ln_post.weight": torch.ones(outside)}
    torch.save({"state_dict": state, "epoch": 2, "optimizer": {}, "scheduler": {}, "val_result": None}, path)
    return path
