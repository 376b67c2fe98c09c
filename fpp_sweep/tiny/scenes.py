"""Twelve landscapes, each painted by a function of an easel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from fpp_sweep.tiny.rendering import CANVAS, COLOURS, Picture, choose

Rgb: TypeAlias = tuple[int, int, int]


class Easel:
    """An empty canvas with a pen, a horizon, a sky colour, and random numbers."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.image = Image.new("RGB", (CANVAS, CANVAS))
        self.pen = ImageDraw.Draw(self.image)
        self.horizon = int(CANVAS * self.uniform(0.35, 0.6))
        if self.chance(0.7):
            self.sky = self.tint(130, 190, 240)
        else:
            self.sky = self.tint(190, 200, 210)

    def uniform(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def position(self, low: float = 0, high: float = CANVAS) -> float:
        return self.uniform(low, high)

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def several(self, low: int, high: int) -> range:
        return range(int(self.rng.integers(low, high)))

    def tint(self, red: int, green: int, blue: int, spread: float = 14.0) -> Rgb:
        jitter = self.rng.normal(0, spread, 3) + self.rng.normal(0, spread)
        r, g, b = np.clip(np.array([red, green, blue]) + jitter, 0, 255).astype(int).tolist()
        return r, g, b

    def band(self, top: float, bottom: float, colour: Rgb) -> None:
        self.pen.rectangle((0, top, CANVAS, bottom), fill=colour)

    def fade(self, top: int, bottom: int, upper: Rgb, lower: Rgb) -> None:
        for y in range(top, bottom):
            share = (y - top) / max(1, bottom - top)
            mixed = np.array(upper) * (1 - share) + np.array(lower) * share
            r, g, b = mixed.astype(int).tolist()
            self.pen.line((0, y, CANVAS, y), fill=(r, g, b))

    def ball(self, x: float, y: float, radius: float, colour: Rgb) -> None:
        self.pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)

    def cone(self, x: float, foot: float, half_width: float, top: float, colour: Rgb) -> None:
        self.pen.polygon([(x - half_width, foot), (x + half_width, foot), (x, top)], fill=colour)


def beach(easel: Easel) -> None:
    shore = easel.horizon + int(CANVAS * easel.uniform(0.1, 0.25))
    easel.fade(0, easel.horizon, easel.sky, easel.tint(200, 225, 245))
    easel.band(easel.horizon, shore, easel.tint(40, 120, 190))
    easel.band(shore, CANVAS, easel.tint(235, 210, 150))
    easel.pen.line((0, shore, CANVAS, shore), fill=(250, 250, 250))


def forest(easel: Easel) -> None:
    easel.band(0, CANVAS, easel.sky)
    easel.band(easel.horizon, CANVAS, easel.tint(60, 90, 40))
    for _ in easel.several(9, 16):
        x, foot = easel.position(), easel.position(easel.horizon)
        easel.pen.rectangle((x - 1, foot - 4, x + 1, foot + 3), fill=easel.tint(90, 60, 30))
        easel.cone(x, foot, easel.uniform(5, 9), foot - easel.uniform(18, 32), easel.tint(30, 100, 45))


def mountain(easel: Easel) -> None:
    easel.band(0, CANVAS, easel.sky)
    for _ in easel.several(2, 5):
        x, peak, half_width = easel.position(), easel.uniform(6, easel.horizon), easel.uniform(18, 34)
        easel.cone(x, CANVAS, half_width, peak, easel.tint(115, 110, 115))
        cap = easel.uniform(0.15, 0.3)  # the snow, as a share of the mountain
        easel.cone(x, peak + (CANVAS - peak) * cap, half_width * cap, peak, (245, 245, 250))


def desert(easel: Easel) -> None:
    easel.fade(0, CANVAS, easel.sky, easel.tint(230, 220, 190))
    for dune in range(3):
        x, half_width, top = easel.position(), easel.uniform(30, 60), easel.horizon + 7 * dune
        box = (x - half_width, top, x + half_width, top + 70)
        easel.pen.ellipse(box, fill=easel.tint(215, 165, 90))


def city(easel: Easel) -> None:
    sky = easel.sky
    if not easel.chance(0.6):
        sky = easel.tint(25, 25, 50)  # at night
    easel.band(0, CANVAS, sky)
    left = 0
    while left < CANVAS:
        width, roof = int(easel.uniform(7, 15)), int(easel.uniform(8, CANVAS * 0.6))
        easel.pen.rectangle((left, roof, left + width - 1, CANVAS), fill=easel.tint(105, 105, 115, 22))
        light = easel.tint(235, 220, 130)
        for x in range(left + 2, left + width - 2, 3):
            for y in range(roof + 2, CANVAS, 4):
                if easel.chance(0.6):
                    easel.pen.point((x, y), fill=light)
        left += width


def ocean(easel: Easel) -> None:
    surface = easel.horizon // 2
    easel.band(0, surface, easel.sky)
    easel.fade(surface, CANVAS, easel.tint(40, 110, 180), easel.tint(10, 50, 110))
    for _ in range(14):
        x, y = easel.position(), easel.position(surface)
        easel.pen.arc((x - 6, y - 2, x + 6, y + 3), 180, 360, fill=easel.tint(190, 220, 240))


def night_sky(easel: Easel) -> None:
    easel.fade(0, CANVAS, easel.tint(8, 8, 30, 6), easel.tint(25, 25, 60, 8))
    for _ in easel.several(15, 45):
        easel.pen.point((easel.position(), easel.position()), fill=easel.tint(240, 240, 220))
    easel.ball(easel.position(8, 56), easel.position(8, 56), easel.uniform(3, 7), easel.tint(240, 240, 210))


def sunset(easel: Easel) -> None:
    easel.fade(0, easel.horizon, easel.tint(90, 40, 110), easel.tint(250, 140, 50))
    easel.ball(easel.position(12, 52), easel.horizon, easel.uniform(6, 11), easel.tint(255, 200, 60))
    easel.band(easel.horizon, CANVAS, easel.tint(45, 30, 50))


def meadow(easel: Easel) -> None:
    easel.fade(0, easel.horizon, easel.sky, easel.tint(210, 230, 245))
    easel.band(easel.horizon, CANVAS, easel.tint(90, 175, 60))
    for _ in easel.several(10, 25):
        blossom = COLOURS[choose(("red", "yellow", "white", "pink", "purple"), easel.rng)]
        easel.ball(easel.position(), easel.position(easel.horizon + 2), 1, easel.tint(*blossom))


def snowfield(easel: Easel) -> None:
    easel.band(0, easel.horizon, easel.tint(180, 195, 215))
    easel.band(easel.horizon, CANVAS, easel.tint(238, 242, 248, 6))
    for _ in easel.several(20, 45):
        easel.pen.point((easel.position(), easel.position()), fill=(255, 255, 255))
    for _ in easel.several(0, 3):
        fir = easel.tint(70, 100, 90)
        easel.cone(easel.position(5, 58), easel.horizon + 8, 5, easel.horizon - 10, fir)


def road(easel: Easel) -> None:
    easel.band(0, easel.horizon, easel.sky)
    ground = (190, 160, 110)
    if easel.chance(0.6):
        ground = (100, 150, 70)  # grass
    easel.band(easel.horizon, CANVAS, easel.tint(*ground))
    x, left, right = easel.position(22, 42), easel.uniform(18, 30), easel.uniform(18, 30)
    corners = [(x - 2, easel.horizon), (x + 2, easel.horizon), (x + left, CANVAS), (x - right, CANVAS)]
    easel.pen.polygon(corners, fill=easel.tint(75, 75, 80))
    for y in range(easel.horizon + 2, CANVAS, 8):
        easel.pen.line((x, y, x, y + 4), fill=(245, 240, 200), width=2)


def volcano(easel: Easel) -> None:
    easel.band(0, CANVAS, easel.tint(120, 110, 120))
    x, crater, half_width = easel.position(22, 42), easel.uniform(15, 28), easel.uniform(26, 40)
    rim = [(x + 6, crater), (x - 6, crater)]
    easel.pen.polygon([(x - half_width, CANVAS), (x + half_width, CANVAS), *rim], fill=easel.tint(70, 50, 45))
    right = (x + easel.uniform(2, 9), crater + easel.uniform(15, 30))
    left = (x - easel.uniform(2, 6), crater + easel.uniform(10, 25))
    easel.pen.polygon([rim[1], rim[0], right, left], fill=easel.tint(245, 90, 25))
    for _ in range(6):
        smoke = easel.tint(90, 85, 90)
        easel.ball(x + easel.uniform(-8, 8), crater - easel.uniform(2, 14), easel.uniform(2, 6), smoke)


_SCENES = (beach, forest, mountain, desert, city, ocean, night_sky, sunset, meadow, snowfield, road, volcano)
SCENES: dict[str, Callable[[Easel], None]] = {scene.__name__.replace("_", " "): scene for scene in _SCENES}
SCENE_NAMES = tuple(SCENES)


def paint_scene(name: str, rng: np.random.Generator) -> Picture:
    easel = Easel(rng)
    SCENES[name](easel)
    return np.asarray(easel.image, np.float32)
