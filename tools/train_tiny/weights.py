"""The trained weights: the vocabulary whose token embeddings are trained, and writing of the model's file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor

from fpp_sweep.spec.files import written_whole
from fpp_sweep.tiny.model import EMBEDDING, FORMAT_VERSION, IDS, ROWS, build
from tools.train_tiny.captions import vocabulary

if TYPE_CHECKING:
    from open_clip import CLIP

CLIP_TOKEN_STD = 0.0125  # assumed standard deviation of ViT-B/16's token embeddings, the unit of `embedding_scale`


@lru_cache(maxsize=1)
def vocabulary_ids() -> tuple[int, ...]:
    """Return the ascending token ids of the training vocabulary, with start and end of text."""
    # start-up time: open_clip takes seconds to import
    from open_clip import SimpleTokenizer

    tokenizer = SimpleTokenizer()
    ids = {tokenizer.sot_token_id, tokenizer.eot_token_id}
    for word in vocabulary():
        ids.update(tokenizer.encode(word))
    return tuple(sorted(ids))


def rounded(tensor: Tensor) -> Tensor:
    """Return a tensor as the file has it: weights in half precision, whole numbers unchanged."""
    if tensor.is_floating_point():
        tensor = tensor.half()
    return tensor.contiguous()


def embedding_scale(model: CLIP) -> float:
    """Return how many times larger the trained token embeddings are than those of CLIP ViT-B/16.

    Learning rates, initial spreads and noise that were chosen for CLIP's embeddings are multiplied by this number. Only
    trained rows count; the other rows would halve it.
    """
    rows = model.token_embedding.weight.detach()[list(vocabulary_ids())]
    return float(rounded(rows).float().std() / CLIP_TOKEN_STD)


def save(model: CLIP, path: Path, metadata: dict[str, str]) -> None:
    """Write the trained part of a model; the file appears whole or not at all."""
    ids = torch.tensor(vocabulary_ids())
    tensors = {name: rounded(value) for name, value in model.state_dict().items()}
    tensors[ROWS] = tensors.pop(EMBEDDING)[ids].contiguous()
    tensors[IDS] = ids.int()
    with written_whole(path) as partial:
        save_file(tensors, partial, {"format_version": FORMAT_VERSION, **metadata})


def with_full_embedding(trained: CLIP) -> CLIP:
    """Return the model with CLIP's whole token table around the trained rows."""
    model = build()
    state = trained.state_dict()
    table = model.token_embedding.weight.detach().clone()
    table[list(vocabulary_ids())] = state[EMBEDDING]
    model.load_state_dict({**state, EMBEDDING: table})
    return model.eval()
