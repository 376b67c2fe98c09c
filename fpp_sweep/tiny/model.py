"""The embedded CLIP: its architecture, and the 4 MB file it is shipped as.

Of CLIP's 49,408 token embeddings the file holds only the rows that were trained (`trained_ids`). The others are filled
with fixed random numbers, so texts of unknown words can be encoded, but their features are meaningless. open_clip is
imported inside functions, because that takes seconds.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fpp_sweep.spec.files import written_whole
from fpp_sweep.tiny.captions import vocabulary

if TYPE_CHECKING:
    from open_clip import CLIP

SHIPPED = Path(__file__).with_name("tiny.safetensors")
FORMAT_VERSION = "1"
IMAGE_SIZE = 48
IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)  # CLIP's
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
WIDTH = 128  # of the joint space and of the text tower
CLIP_TOKEN_STD = 0.0125  # assumed std of ViT-B/16's token embeddings, the unit of `embedding_scale`
UNTRAINED_STD = 0.02  # as open_clip initialises token embeddings
UNTRAINED_SEED = 0
EMBEDDING = "token_embedding.weight"
IDS, ROWS = "token_embedding.ids", "token_embedding.rows"


def build() -> CLIP:
    """A freshly initialised model; draws from torch's global random stream."""
    from open_clip import CLIP
    from open_clip.model import CLIPTextCfg, CLIPVisionCfg

    vision = CLIPVisionCfg(layers=(1, 2, 2, 1), width=16, head_width=32, image_size=IMAGE_SIZE)
    text = CLIPTextCfg(context_length=77, vocab_size=49_408, width=WIDTH, heads=4, layers=3)
    return CLIP(WIDTH, vision, text)


@lru_cache(maxsize=1)
def vocabulary_ids() -> tuple[int, ...]:
    """Ascending token ids of the training vocabulary, with start and end of text."""
    from open_clip import SimpleTokenizer

    tokenizer = SimpleTokenizer()
    ids = {token for word in vocabulary() for token in tokenizer.encode(word)}
    return tuple(sorted(ids | {tokenizer.sot_token_id, tokenizer.eot_token_id}))


def rounded(tensor: Tensor) -> Tensor:
    """As in the file: half precision for weights, whole numbers untouched."""
    return (tensor.half() if tensor.is_floating_point() else tensor).contiguous()


def embedding_scale(model: CLIP) -> float:
    """How many times larger the trained token embeddings are than those of CLIP ViT-B/16.

    Learning rates, initial spreads and noise that were chosen for CLIP's embeddings have to be multiplied by it. Only
    trained rows count; the others would halve it.
    """
    rows = model.token_embedding.weight.detach()[list(vocabulary_ids())]
    return float(rounded(rows).float().std() / CLIP_TOKEN_STD)


def save(model: CLIP, path: Path, metadata: dict[str, str]) -> None:
    """Write the trained part of `model`; the file appears whole or not at all."""
    ids = torch.tensor(vocabulary_ids())
    tensors = {name: rounded(value) for name, value in model.state_dict().items()}
    tensors[ROWS] = tensors.pop(EMBEDDING)[ids].contiguous()
    tensors[IDS] = ids.int()
    with written_whole(path) as partial:
        save_file(tensors, partial, {"format_version": FORMAT_VERSION, **metadata})


def load(path: Path | None = None) -> tuple[CLIP, dict[str, str]]:
    """The model in single precision and evaluation mode, and the metadata of its file."""
    path = path or SHIPPED
    with safe_open(path, framework="pt") as file:
        metadata: dict[str, str] = file.metadata() or {}
        version = metadata.get("format_version")
        if version != FORMAT_VERSION:
            raise ValueError(f"{path}: format_version must be {FORMAT_VERSION!r}, got {version!r}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    state = {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}
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
    """The token ids whose embeddings were trained; reads only that part of the file."""
    with safe_open(path, framework="pt") as file:
        return frozenset(file.get_tensor(IDS).tolist())
