"""The training loop of the embedded CLIP.

A pool of pictures is drawn once, and `losses` compares batches of it with captions. The optimizer is AdamW, with
warm-up and cosine by step (`Recipe.rate_at`). Every draw comes from (seed, step), so a run that is repeated with the
same number of threads gives the same bits.
"""

from __future__ import annotations

import math
import platform
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fpp_sweep.tiny.model import UNTRAINED_STD, WIDTH, build
from fpp_sweep.tiny.rendering import generator
from tools.train_tiny.losses import Lexicon, step_loss
from tools.train_tiny.pool import description, draw_pool
from tools.train_tiny.recipe import Recipe

if TYPE_CHECKING:
    from open_clip import CLIP

REPORT_EVERY = 50  # steps
MAX_GRADIENT_NORM = 1.0
MAX_LOGIT_SCALE = math.log(100)  # CLIP's own limit


def start_model(lexicon: Lexicon, seed: int) -> CLIP:
    """Return a fresh model with an embedding of the vocabulary only: 6 million unused weights would slow each step."""
    torch.manual_seed(seed)
    model = build()
    compact = nn.Embedding(len(lexicon.row_of), WIDTH)
    nn.init.normal_(compact.weight, std=UNTRAINED_STD)
    model.token_embedding = compact
    model.visual.to(memory_format=torch.channels_last)
    return model.train()


def make_optimizer(model: CLIP, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices and kernels only: not on embeddings, norms, biases or the scale."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and "embedding" not in name:
            decayed.append(parameter)
        else:
            free.append(parameter)
    groups = [{"params": decayed, "weight_decay": recipe.decay}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98), fused=True)


def batch_indices(recipe: Recipe, step: int) -> NDArray[np.int64]:
    """Return the pictures of a step: epochs over the pool, each in its own random order, without incomplete batches."""
    epoch, position = divmod(step, recipe.pool // recipe.batch)
    order = generator("train", recipe.seed, "epoch", epoch).permutation(recipe.pool)
    return order[position * recipe.batch : (position + 1) * recipe.batch]


def peak_megabytes() -> float:
    """Return the peak memory of this process (ru_maxrss is in KiB on Linux, in bytes on macOS)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 2**10
    if platform.system() == "Darwin":
        unit = 2**20
    return peak / unit


class Progress:
    """Printed lines of smoothed losses, speed and memory, every few steps."""

    def __init__(self, recipe: Recipe, every: int) -> None:
        self.recipe, self.every = recipe, every
        self.begun, self.cpu = time.monotonic(), time.process_time()
        self.smoothed: dict[str, float] = {}

    def report(self, done: int, losses: dict[str, Tensor], scale: float) -> None:
        for name, loss in losses.items():
            self.smoothed[name] = 0.95 * self.smoothed.get(name, loss.item()) + 0.05 * loss.item()
        if done % self.every and done != self.recipe.total_steps:
            return
        images = done * self.recipe.batch
        print(
            f"{done}/{self.recipe.total_steps} ",
            *[f"{name} {value:.2f}" for name, value in self.smoothed.items()],
            f" scale {scale:.1f}",
            f" {images / (time.monotonic() - self.begun):.0f} images/s",
            f" cpu {(time.process_time() - self.cpu):.0f} s",
            f" peak {peak_megabytes():.0f} MB",
            flush=True,
        )


def read_pool(path: Path, recipe: Recipe, workers: int) -> NDArray[np.uint8]:
    """Draw the pool into a file and map the file into memory."""
    begun = time.monotonic()
    drawn = sum(draw_pool(path, recipe.seed, recipe.pool, workers))
    print(f"pool: {drawn} pictures in {time.monotonic() - begun:.0f} s", flush=True)
    pictures: NDArray[np.uint8] = np.load(path, mmap_mode="r")
    return pictures


def train(recipe: Recipe, workers: int, every: int = REPORT_EVERY) -> CLIP:
    """Return the trained model."""
    lexicon = Lexicon()
    model = start_model(lexicon, recipe.seed)
    optimizer = make_optimizer(model, recipe)
    with tempfile.TemporaryDirectory(prefix="fpp_sweep_tiny_") as folder:
        pictures = read_pool(Path(folder) / "pool.npy", recipe, workers)
        descriptions = [description(recipe.seed, index) for index in range(recipe.pool)]
        progress = Progress(recipe, every)
        for step in range(recipe.total_steps):
            batch = batch_indices(recipe, step)
            rng = generator("train", recipe.seed, "step", step)
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate_at(step)
            shown = [descriptions[index] for index in batch]
            losses = step_loss(model, lexicon, pictures[batch], shown, recipe, rng)
            take_step(model, optimizer, losses)
            progress.report(step + 1, losses, model.logit_scale.exp().item())
    return model


def take_step(model: CLIP, optimizer: torch.optim.Optimizer, losses: dict[str, Tensor]) -> None:
    """Take one step of the optimizer down the sum of the losses."""
    optimizer.zero_grad()
    torch.stack(list(losses.values())).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    optimizer.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, MAX_LOGIT_SCALE)
