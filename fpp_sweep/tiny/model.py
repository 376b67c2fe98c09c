"""The embedded CLIP: its architecture, and the 4 MB file of its weights.

Of CLIP's 49,408 token embeddings the file holds only the rows that were trained (`trained_ids`). The other rows are
filled with fixed random numbers. So texts of unknown words can be encoded, but their features are meaningless.
"""

from __future__ import annotations

from pathlib import Path

import torch
from open_clip import CLIP
from open_clip.model import CLIPTextCfg, CLIPVisionCfg
from safetensors import safe_open

SHIPPED = Path(__file__).with_name("tiny.safetensors")
FORMAT_VERSION = "1"
IMAGE_SIZE = 48
IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)  # CLIP's
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
WIDTH = 128  # dimension of the joint space and width of the text tower
UNTRAINED_STD = 0.02  # as open_clip initialises token embeddings
UNTRAINED_SEED = 0
EMBEDDING = "token_embedding.weight"
IDS, ROWS = "token_embedding.ids", "token_embedding.rows"  # the names under which the file has its trained rows


def build() -> CLIP:
    """Return a freshly initialised model; draws from torch's global random stream."""
    vision = CLIPVisionCfg(layers=(1, 2, 2, 1), width=16, head_width=32, image_size=IMAGE_SIZE)
    text = CLIPTextCfg(context_length=77, vocab_size=49_408, width=WIDTH, heads=4, layers=3)
    return CLIP(WIDTH, vision, text)


def load(path: Path | None = None) -> tuple[CLIP, dict[str, str]]:
    """Return the model in single precision and evaluation mode, and the metadata of its file."""
    path = path or SHIPPED
    with safe_open(path, framework="pt") as file:
        metadata: dict[str, str] = file.metadata() or {}
        version = metadata.get("format_version")
        if version != FORMAT_VERSION:
            raise ValueError(f"{path}: format_version must be {FORMAT_VERSION!r}, got {version!r}")
        state = {}
        for name in file.keys():  # noqa: SIM118
            tensor = file.get_tensor(name)
            state[name] = tensor.float() if tensor.is_floating_point() else tensor
    ids, rows = state.pop(IDS).long(), state.pop(ROWS)
    with torch.random.fork_rng(devices=[]):  # leaves the caller's random state as it was
        model = build()
    stream = torch.Generator().manual_seed(UNTRAINED_SEED)
    embedding = torch.empty(model.token_embedding.weight.shape).normal_(0, UNTRAINED_STD, generator=stream)
    embedding[ids] = rows
    model.load_state_dict({**state, EMBEDDING: embedding})
    model.requires_grad_(False)
    return model.eval(), metadata


def trained_ids(path: Path = SHIPPED) -> frozenset[int]:
    """Return the token ids whose embeddings were trained; reads only that part of the file."""
    with safe_open(path, framework="pt") as file:
        return frozenset(file.get_tensor(IDS).tolist())
