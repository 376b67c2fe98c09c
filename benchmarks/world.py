"""A text tower of ViT-B-16's sizes with its classes, for the naive reference and for the engine.

Weights are random: speed does not depend on them. Token lengths and shared prefixes are those of real class names.
`lengths.json` has the token ids by CLIP's tokenizer, so that machines without open_clip measure the same work. The ten
names are EuroSAT's; ImageNet's first K names replace the other lists (DTD's 47, Food101's 101, SUN397's 397).
`python -m benchmarks.world` writes the file again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fpp_sweep.core.compute import MemoryBudget
from fpp_sweep.core.methods import TextModel
from fpp_sweep.core.text.texts import ClassTexts
from fpp_sweep.core.text.tower import TextTower
from tests.reference.naive import NaiveText, random_views, random_weights

FILE = Path(__file__).with_name("lengths.json")
STAND_IN = "ImageNet's first K names stand in for the lists of the datasets named; K = 10 is EuroSAT's own."
PROMPT = "a photo of a"
LOGIT_SCALE = 100.0
VIEWS = 64
EUROSAT = (
    "Annual Crop Land",
    "Forest",
    "Herbaceous Vegetation Land",
    "Highway or Road",
    "Industrial Buildings",
    "Pasture Land",
    "Permanent Crop Land",
    "Residential Buildings",
    "River",
    "Sea or Lake",
)
# for each K, the dataset of that size and the number of its test images
TEST_SETS = {10: ("EuroSAT", 8100), 47: ("DTD", 1692), 101: ("Food101", 30300), 397: ("SUN397", 19850)}
TEST_SETS[1000] = ("ImageNet", 50000)
PAPER_CLASSES = {  # number of classes of the paper's ten datasets
    "aircraft": 100,
    "caltech101": 100,
    "cars": 196,
    "dtd": 47,
    "eurosat": 10,
    "flowers102": 102,
    "food101": 101,
    "pets": 37,
    "sun397": 397,
    "ucf101": 101,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a text tower."""

    width: int
    heads: int
    layers: int
    embed_dim: int


VIT_B_16 = Shape(width=512, heads=8, layers=12, embed_dim=512)
SMALL = Shape(width=64, heads=4, layers=3, embed_dim=32)


class StoredTokenizer:
    """A tokenizer that returns CLIP's token ids for the texts of the file only."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self.sos: int = stored["sos"]
        self.eot: int = stored["eot"]
        self.vocabulary = self.eot + 1
        self._ids = {text: ids for part in ("prompt", "eurosat", "imagenet") for text, ids in stored[part]}

    def encode(self, text: str) -> list[int]:
        return list(self._ids[text])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class World:
    """A random tower and its classes in the naive and in the engine's form, with image features."""

    naive: NaiveText
    token_ids: Tensor  # (K, 77)
    texts: ClassTexts
    context: Tensor  # (n, W), the context of PROMPT
    views: Tensor  # (samples, V, D)

    @property
    def model(self) -> TextModel:
        return TextModel(texts=self.texts, logit_scale=LOGIT_SCALE)


def build(shape: Shape, classes: int, *, samples: int, device: str) -> World:
    stored = json.loads(FILE.read_text())
    tokenizer = StoredTokenizer(stored)
    names = [text.removesuffix(".") for text, _ in stored["eurosat" if classes == 10 else "imagenet"][:classes]]
    weights = random_weights(
        width=shape.width, layers=shape.layers, embed_dim=shape.embed_dim, vocabulary=tokenizer.vocabulary
    )
    on_cpu = {name: value.cpu() for name, value in weights.items()}
    weights = {name: value.to(device) for name, value in weights.items()}
    tower = TextTower.from_state(on_cpu, heads=shape.heads, activation="quick_gelu").to(device)
    if torch.device(device).type == "cuda":  # batches are limited by the device's memory
        tower = replace(tower, memory=MemoryBudget.available(torch.device(device), 1.0))
    texts = ClassTexts.of_names(tower, tokenizer, names)
    context = tower.token_embedding[torch.tensor(tokenizer.encode(PROMPT), device=device)]
    with torch.no_grad():
        features = texts.features(context).cpu()
    return World(
        naive=NaiveText(weights, shape.heads, quick_gelu=True),
        token_ids=padded_ids(tokenizer, names).to(device),
        texts=texts,
        context=context,
        views=random_views(features, samples=samples, views=VIEWS, logit_scale=LOGIT_SCALE).to(device),
    )


def padded_ids(tokenizer: StoredTokenizer, names: list[str]) -> Tensor:
    """Return the complete prompts of the classes, with 77 token ids each."""
    ids = torch.zeros(len(names), 77, dtype=torch.long)
    for row, name in zip(ids, names, strict=True):
        tokens = [tokenizer.sos, *tokenizer.encode(PROMPT), *tokenizer.encode(f"{name}."), tokenizer.eot]
        row[: len(tokens)] = torch.tensor(tokens)
    return ids


def tokenised() -> dict[str, Any]:
    """Return the contents of the file, computed by open_clip's tokenizer."""
    # imported here because they load open_clip, which readers of the file do not need
    from fpp_sweep.core.datasets import imagenet_classes
    from fpp_sweep.core.models.clip import BpeTokenizer

    tokenizer = BpeTokenizer()

    def pairs(texts: list[str]) -> list[list[Any]]:
        return [[text, tokenizer.encode(text)] for text in texts]

    return {
        "sos": tokenizer.sos,
        "eot": tokenizer.eot,
        "prompt": pairs([PROMPT]),
        "eurosat": pairs([f"{name}." for name in EUROSAT]),
        "imagenet": pairs([f"{name}." for name in imagenet_classes().values()]),
    }


def main() -> None:
    lines = [f"{json.dumps(name)}: {_lines(value)}" for name, value in tokenised().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _lines(value: Any) -> str:
    """Return a value as JSON, a list with one item per line, so that differences are readable."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"


if __name__ == "__main__":
    main()
