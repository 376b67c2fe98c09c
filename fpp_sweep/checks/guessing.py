"""The number of images that tells a model that fits a dataset from one that guesses."""

from __future__ import annotations

from functools import cache

from scipy import special

GUESSING_PROBABILITY = 0.001  # a number of hits that guessing reaches more rarely is not called guessing
# a model that fits is taken to be right on this share of the way from guessing to all images
FITTING_SHARE = 1 / 3
POWER = 0.95  # enough images show a model that fits with this probability
MOST_IMAGES = 4096


def looks_like_guessing(correct: int, images: int, classes: int) -> bool:
    """Return True if guessing among the classes may well give this many correct predictions."""
    return probability_of_hits(correct, images, 1 / classes) > GUESSING_PROBABILITY


def probability_of_hits(correct: int, images: int, share: float) -> float:
    """Return how probable this many correct predictions, or more, are if each is correct with probability `share`."""
    if correct == 0:
        return 1.0
    return float(special.bdtrc(correct - 1, images, share))


@cache
def images_needed(classes: int) -> int:
    """Return how many images tell a model that fits from guessing.

    >>> images_needed(2), images_needed(10), images_needed(100)
    (199, 42, 17)
    """
    share = 1 / classes
    fitting_share = share + FITTING_SHARE * (1 - share)
    for images in range(1, MOST_IMAGES):
        hits = 0  # the smallest number that does not look like guessing
        while hits <= images and looks_like_guessing(hits, images, classes):
            hits += 1
        if hits <= images and probability_of_hits(hits, images, fitting_share) >= POWER:
            return images
    return MOST_IMAGES
