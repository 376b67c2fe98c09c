"""Twelve landscapes: one function paints each."""

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


def beach(e: Easel) -> None:
    shore = e.horizon + int(CANVAS * e.uniform(0.1, 0.25))
    e.fade(0, e.horizon, e.sky, e.tint(200, 225, 245))
    e.band(e.horizon, shore, e.tint(40, 120, 190))
    e.band(shore, CANVAS, e.tint(235, 210, 150))
    e.pen.line((0, shore, CANVAS, shore), fill=(250, 250, 250))


def forest(e: Easel) -> None:
    e.band(0, CANVAS, e.sky)
    e.band(e.horizon, CANVAS, e.tint(60, 90, 40))
    for _ in e.several(9, 16):
        x, foot = e.position(), e.position(e.horizon)
        e.pen.rectangle((x - 1, foot - 4, x + 1, foot + 3), fill=e.tint(90, 60, 30))
        e.cone(x, foot, e.uniform(5, 9), foot - e.uniform(18, 32), e.tint(30, 100, 45))


def mountain(e: Easel) -> None:
    e.band(0, CANVAS, e.sky)
    for _ in e.several(2, 5):
        x, peak, half_width = e.position(), e.uniform(6, e.horizon), e.uniform(18, 34)
        e.cone(x, CANVAS, half_width, peak, e.tint(115, 110, 115))
        cap = e.uniform(0.15, 0.3)  # the snow, as a share of the mountain
        e.cone(x, peak + (CANVAS - peak) * cap, half_width * cap, peak, (245, 245, 250))


def desert(e: Easel) -> None:
    e.fade(0, CANVAS, e.sky, e.tint(230, 220, 190))
    for dune in range(3):
        x, half_width, top = e.position(), e.uniform(30, 60), e.horizon + 7 * dune
        box = (x - half_width, top, x + half_width, top + 70)
        e.pen.ellipse(box, fill=e.tint(215, 165, 90))


def city(e: Easel) -> None:
    sky = e.sky
    if not e.chance(0.6):
        sky = e.tint(25, 25, 50)  # at night
    e.band(0, CANVAS, sky)
    left = 0
    while left < CANVAS:
        width, roof = int(e.uniform(7, 15)), int(e.uniform(8, CANVAS * 0.6))
        e.pen.rectangle((left, roof, left + width - 1, CANVAS), fill=e.tint(105, 105, 115, 22))
        light = e.tint(235, 220, 130)
        for x in range(left + 2, left + width - 2, 3):
            for y in range(roof + 2, CANVAS, 4):
                if e.chance(0.6):
                    e.pen.point((x, y), fill=light)
        left += width


def ocean(e: Easel) -> None:
    surface = e.horizon // 2
    e.band(0, surface, e.sky)
    e.fade(surface, CANVAS, e.tint(40, 110, 180), e.tint(10, 50, 110))
    for _ in range(14):
        x, y = e.position(), e.position(surface)
        e.pen.arc((x - 6, y - 2, x + 6, y + 3), 180, 360, fill=e.tint(190, 220, 240))


def night_sky(e: Easel) -> None:
    e.fade(0, CANVAS, e.tint(8, 8, 30, 6), e.tint(25, 25, 60, 8))
    for _ in e.several(15, 45):
        e.pen.point((e.position(), e.position()), fill=e.tint(240, 240, 220))
    e.ball(e.position(8, 56), e.position(8, 56), e.uniform(3, 7), e.tint(240, 240, 210))


def sunset(e: Easel) -> None:
    e.fade(0, e.horizon, e.tint(90, 40, 110), e.tint(250, 140, 50))
    e.ball(e.position(12, 52), e.horizon, e.uniform(6, 11), e.tint(255, 200, 60))
    e.band(e.horizon, CANVAS, e.tint(45, 30, 50))


def meadow(e: Easel) -> None:
    e.fade(0, e.horizon, e.sky, e.tint(210, 230, 245))
    e.band(e.horizon, CANVAS, e.tint(90, 175, 60))
    for _ in e.several(10, 25):
        blossom = COLOURS[choose(("red", "yellow", "white", "pink", "purple"), e.rng)]
        e.ball(e.position(), e.position(e.horizon + 2), 1, e.tint(*blossom))


def snowfield(e: Easel) -> None:
    e.band(0, e.horizon, e.tint(180, 195, 215))
    e.band(e.horizon, CANVAS, e.tint(238, 242, 248, 6))
    for _ in e.several(20, 45):
        e.pen.point((e.position(), e.position()), fill=(255, 255, 255))
    for _ in e.several(0, 3):
        fir = e.tint(70, 100, 90)
        e.cone(e.position(5, 58), e.horizon + 8, 5, e.horizon - 10, fir)


def road(e: Easel) -> None:
    e.band(0, e.horizon, e.sky)
    ground = (190, 160, 110)
    if e.chance(0.6):
        ground = (100, 150, 70)  # grass
    e.band(e.horizon, CANVAS, e.tint(*ground))
    x, left, right = e.position(22, 42), e.uniform(18, 30), e.uniform(18, 30)
    corners = [(x - 2, e.horizon), (x + 2, e.horizon), (x + left, CANVAS), (x - right, CANVAS)]
    e.pen.polygon(corners, fill=e.tint(75, 75, 80))
    for y in range(e.horizon + 2, CANVAS, 8):
        e.pen.line((x, y, x, y + 4), fill=(245, 240, 200), width=2)


def volcano(e: Easel) -> None:
    e.band(0, CANVAS, e.tint(120, 110, 120))
    x, crater, half_width = e.position(22, 42), e.uniform(15, 28), e.uniform(26, 40)
    rim = [(x + 6, crater), (x - 6, crater)]
    e.pen.polygon([(x - half_width, CANVAS), (x + half_width, CANVAS), *rim], fill=e.tint(70, 50, 45))
    right = (x + e.uniform(2, 9), crater + e.uniform(15, 30))
    left = (x - e.uniform(2, 6), crater + e.uniform(10, 25))
    e.pen.polygon([rim[1], rim[0], right, left], fill=e.tint(245, 90, 25))
    for _ in range(6):
        smoke = e.tint(90, 85, 90)
        e.ball(x + e.uniform(-8, 8), crater - e.uniform(2, 14), e.uniform(2, 6), smoke)


_SCENES = (beach, forest, mountain, desert, city, ocean, night_sky, sunset, meadow, snowfield, road, volcano)
SCENES: dict[str, Callable[[Easel], None]] = {scene.__name__.replace("_", " "): scene for scene in _SCENES}


def paint_scene(name: str, rng: np.random.Generator) -> Picture:
    easel = Easel(rng)
    SCENES[name](easel)
    return np.asarray(easel.image, np.float32)
