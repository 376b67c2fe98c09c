"""Evaluation of a trained model, and its file."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from fpp_sweep.tiny.model import load
from fpp_sweep.tiny.world import TINY_DATASETS, TinyDataset
from tools.train_tiny.captions import CANONICAL
from tools.train_tiny.losses import image_features, resize, standardise, to_unit
from tools.train_tiny.recipe import Recipe
from tools.train_tiny.weights import embedding_scale, save, with_full_embedding

if TYPE_CHECKING:
    from open_clip import CLIP

ECE_BINS = 20
LIBRARIES = ("torch", "open_clip_torch", "numpy", "pillow", "scikit-learn", "safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Zero-shot results on one dataset, in per cent."""

    accuracy: float
    ece: float
    confidence: float


def expected_calibration_error(confidence: NDArray[np.floating[Any]], correct: NDArray[np.bool_]) -> float:
    """Return the weighted mean gap between accuracy and confidence over ECE_BINS bins (low, high]."""
    bins = np.clip(np.ceil(confidence * ECE_BINS) - 1, 0, ECE_BINS - 1).astype(int)
    gaps = np.bincount(bins, correct - confidence, minlength=ECE_BINS)
    return float(np.abs(gaps).sum() / len(confidence))


@torch.no_grad()
def zero_shot(model: CLIP, dataset: TinyDataset, split: str = "test", count: int = 1000) -> Score:
    """Score the canonical prompt on the first `count` pictures of a split."""
    # start-up time: open_clip takes seconds to import
    from open_clip import SimpleTokenizer

    tokens = SimpleTokenizer()([CANONICAL.format(name) for name in dataset.classes])
    classifier = F.normalize(model.encode_text(tokens), dim=-1)
    indices = range(min(count, dataset.sizes[split]))
    labels = dataset.labels(split)[indices]
    pictures = np.stack([dataset.render(split, index) for index in indices])
    batches = torch.split(to_unit(pictures), 250)
    features = torch.cat([image_features(model, standardise(resize(batch))) for batch in batches])
    probabilities = (model.logit_scale.exp() * features @ classifier.T).softmax(dim=1).numpy()
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    return Score(
        accuracy=100 * float(correct.mean()),
        ece=100 * expected_calibration_error(confidence, correct),
        confidence=100 * float(confidence.mean()),
    )


def zero_shot_table(model: CLIP, count: int) -> dict[str, Score]:
    """Print and return the scores of all datasets."""
    scores = {}
    print(f"{'dataset':14}{'classes':>8}{'accuracy':>10}{'ECE':>8}{'confidence':>12}")
    for name, dataset in TINY_DATASETS.items():
        score = scores[name] = zero_shot(model, dataset, count=count)
        numbers = f"{score.accuracy:10.1f}{score.ece:8.1f}{score.confidence:12.1f}"
        print(f"{name:14}{len(dataset.classes):8}{numbers}", flush=True)
    return scores


def describe_run(recipe: Recipe, command: str) -> dict[str, str]:
    """Return the metadata of a run: its command, recipe and library versions."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        versions[name] = version(name)
    return {
        "command": command,
        "recipe": json.dumps(asdict(recipe)),
        "seed": str(recipe.seed),
        "steps": str(recipe.total_steps),
        "versions": json.dumps(versions),
    }


def finish(trained: CLIP, out: Path, metadata: dict[str, str], evaluated: int) -> None:
    """Write the file, score the model that is read back from it, and add the scores to the file."""
    save(with_full_embedding(trained), out, metadata)
    model, _ = load(out)
    scale = embedding_scale(model)
    print(f"embedding scale {scale:.3f}, logit scale {model.logit_scale.exp().item():.2f}")
    scores = zero_shot_table(model, evaluated)
    measured = {
        "embedding_scale": f"{scale:.6f}",
        "zero_shot_images": str(evaluated),
        "zero_shot": json.dumps({name: asdict(score) for name, score in scores.items()}),
    }
    save(model, out, {**metadata, **measured})
