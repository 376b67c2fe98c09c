"""Captions of training pictures, and the vocabulary of the text tower."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.tiny.rendering import COLOUR_NAMES, PLAIN, TEXTURE_NAMES, choose
from fpp_sweep.tiny.shapes import SHAPE_NAMES
from fpp_sweep.tiny.world import DIGITS
from tools.train_tiny.pictures import KINDS, NAMES, POSITIONS, SIZES, Description

CANONICAL = "a photo of a {}."  # the evaluations use this prompt; it is therefore the most frequent one here
TEMPLATES = (
    CANONICAL,
    "a photo of the {}.",
    "a photo of one {}.",
    "a photo of a nice {}.",
    "a photo of a {} here.",
    "a good photo of a {}.",
    "a good photo of the {}.",
    "a bad photo of a {}.",
    "a blurry photo of a {}.",
    "a bright photo of a {}.",
    "a dark photo of a {}.",
    "a black and white photo of a {}.",
    "a close-up photo of a {}.",
    "a cropped photo of the {}.",
    "a low resolution photo of a {}.",
    "a photo of my {}.",
    "a picture of a {}.",
    "an image of a {}.",
    "a drawing of a {}.",
    "a sketch of a {}.",
    "a painting of a {}.",
    "a rendering of a {}.",
    "art of the {}.",
    "this is a {}.",
    "this is a photo of a {}.",
    "there is a {} in the image.",
    "itap of a {}.",  # means 'I took a picture'; this prompt and the next two are common in CLIP's prompt lists
    "a origami {}.",
    "a {} in a video game.",
    "a {}.",
    "the {}.",
    "{}.",
)
PLURAL_TEMPLATES = ("a photo of {}.", "a picture of {}.", "an image of {}.", "a drawing of {}.", "these are {}.", "{}.")
COUNTS = {2: "two", 3: "three", 4: "four", 5: "five"}
POSITION_PHRASES = {"left": "on the left", "right": "on the right", "top": "at the top", "bottom": "at the bottom"}
TEXTURE_NOUNS = ("texture", "pattern", "surface", "thing")

# the facts that a caption can state; pictures and captions are encoded as one number per fact
VALUES: dict[str, tuple[str | int, ...]] = {
    "kind": KINDS,
    "name": NAMES,
    "colour": COLOUR_NAMES,
    "texture": (PLAIN, *TEXTURE_NAMES),
    "background": COLOUR_NAMES,
    "size": tuple(SIZES),
    "position": tuple(POSITIONS),
    "count": (1, 2, 3, 4, 5),
}
FACTS = tuple(VALUES)
UNSTATED = -1
CODES = {fact: {value: code for code, value in enumerate(VALUES[fact])} for fact in FACTS}


def encode(facts: Mapping[str, str | int | None]) -> NDArray[np.int64]:
    """Return one code per fact in the order of `FACTS`; UNSTATED for facts that are missing."""
    codes = []
    for fact in FACTS:
        value = facts.get(fact)
        if value is None:
            codes.append(UNSTATED)
        else:
            codes.append(CODES[fact][value])
    return np.array(codes, np.int64)


def encode_picture(description: Description) -> NDArray[np.int64]:
    return encode({fact: getattr(description, fact) for fact in FACTS})


def agrees(captions: NDArray[np.int64], pictures: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each picture and caption (pictures, captions) whether all stated facts are true."""
    stated, shown = captions[None], pictures[:, None]
    return np.asarray(((stated == UNSTATED) | (stated == shown)).all(axis=2))


def plural(noun: str) -> str:
    if noun == "leaf":
        return "leaves"
    if noun.endswith(("s", "x", "sh", "ch")):
        return noun + "es"
    return noun + "s"


def fill_template(phrase: str, rng: np.random.Generator, canonical: float = 0.15) -> str:
    """Put a phrase into a random template, into the canonical one with at least that probability."""
    if rng.random() < canonical:
        return CANONICAL.format(phrase)
    return choose(TEMPLATES, rng).format(phrase)


def number_or_digit(name: str, rng: np.random.Generator) -> str:
    """Write some of the numbers as a digit: 'number 3' for 'number three'."""
    kind, _, word = name.partition(" ")
    if kind == "number" and rng.random() < 0.2:
        return f"number {DIGITS.index(word)}"
    return name


def caption(description: Description, rng: np.random.Generator) -> tuple[str, dict[str, str | int | None]]:
    """Return a sentence that states some of the facts of a picture, and the facts that it states."""
    if description.kind == "scene":
        return fill_template(str(description.name), rng), {"name": description.name}
    if description.kind == "texture":
        phrase = f"{description.texture} {choose(TEXTURE_NOUNS, rng)}"
        return fill_template(phrase, rng), {"texture": description.texture}
    if description.kind == "glyph":
        return caption_of_glyph(description, rng)
    return caption_of_object(description, rng)


def caption_of_glyph(description: Description, rng: np.random.Generator) -> tuple[str, dict[str, str | int | None]]:
    if rng.random() < 0.12:
        return fill_template(f"{description.colour} thing", rng), {"colour": description.colour}
    facts: dict[str, str | int | None] = {"name": description.name}
    phrase = number_or_digit(str(description.name), rng)
    if rng.random() < 0.3:
        facts["colour"] = description.colour
        phrase = f"{description.colour} {phrase}"
    if rng.random() < 0.15:
        facts["background"] = description.background
        phrase += f" on a {description.background} background"
    return fill_template(phrase, rng), facts


def caption_of_object(description: Description, rng: np.random.Generator) -> tuple[str, dict[str, str | int | None]]:
    facts: dict[str, str | int | None] = {}
    words: list[str] = []
    if description.size and rng.random() < 0.5:
        facts["size"] = description.size
        words.append(description.size)
    if rng.random() < 0.5:
        facts["colour"] = description.colour
        words.append(str(description.colour))
    if description.texture != PLAIN and rng.random() < 0.6:
        facts["texture"] = description.texture
        words.append(description.texture)
    if rng.random() < 0.12 and words:
        noun = "thing"
    else:
        facts["name"] = description.name
        noun = str(description.name)
    counted = description.count > 1 and rng.random() < 0.6
    if counted:
        facts["count"] = description.count
        words.insert(0, COUNTS[description.count])
        noun = plural(noun)
    phrase = " ".join([*words, noun])
    if rng.random() < 0.15:
        facts["background"] = description.background
        phrase += f" on a {description.background} background"
    if description.position and rng.random() < 0.5:
        facts["position"] = description.position
        phrase += f" {POSITION_PHRASES[description.position]}"
    if counted:
        return choose(PLURAL_TEMPLATES, rng).format(phrase), facts
    return fill_template(phrase, rng), facts


def split_words(text: str) -> list[str]:
    """Split a caption where CLIP's tokenizer does: at spaces and hyphens, and before the full stop."""
    return text.lower().replace(".", " . ").replace("-", " - ").split()


def vocabulary() -> tuple[str, ...]:
    """Return every word that a training caption can contain, sorted; all of them are trained."""
    templates = [template.format("") for template in (*TEMPLATES, *PLURAL_TEMPLATES)]
    plurals = [plural(noun) for noun in (*SHAPE_NAMES, "thing")]
    phrases = [
        *templates,
        *NAMES,
        *plurals,
        *COLOUR_NAMES,
        *TEXTURE_NAMES,
        *TEXTURE_NOUNS,
        *SIZES,
        *COUNTS.values(),
        *POSITION_PHRASES.values(),
        *[str(digit) for digit in range(10)],
        "on a background",
    ]
    words: set[str] = set()
    for phrase in phrases:
        words.update(split_words(phrase))
    return tuple(sorted(words))
