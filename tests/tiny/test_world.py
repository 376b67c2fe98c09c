"""The embedded datasets: pictures depend on names only."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.tiny.rendering import CANVAS, generator
from fpp_sweep.tiny.world import DIGIT_SIZES, SHIFTS, SPLITS, TINY_DATASETS, PaintedDataset, TinyDataset, handwriting
from tools.train_tiny import pool
from tools.train_tiny.captions import TEMPLATES, agrees, caption, encode, encode_picture, split_words, vocabulary
from tools.train_tiny.pictures import KINDS
from tools.train_tiny.pool import describe

NAMES = sorted(TINY_DATASETS)
every_dataset = pytest.mark.parametrize("dataset", TINY_DATASETS.values(), ids=TINY_DATASETS)


def digest(dataset: TinyDataset, split: str, index: int) -> str:
    return hashlib.sha256(dataset.render(split, index).tobytes()).hexdigest()


def test_the_five_datasets_have_10_to_26_different_classes():
    expected = {"scenes", "digits", "letters", "colours", "textures"}
    assert set(TINY_DATASETS) == expected
    for name, dataset in TINY_DATASETS.items():
        assert dataset.name == name
        assert 10 <= len(dataset.classes) == len(set(dataset.classes)) <= 26
        assert tuple(sorted(dataset.sizes)) == tuple(sorted(SPLITS))


def test_only_datasets_of_glyphs_forbid_mirror_images():
    assert {name for name, dataset in TINY_DATASETS.items() if not dataset.flip} == {"letters", "digits"}


@every_dataset
def test_a_picture_is_an_rgb_square_that_is_not_blank(dataset):
    for split in SPLITS:
        picture = dataset.render(split, 3)
        assert picture.shape == (CANVAS, CANVAS, 3)
        assert picture.dtype == np.uint8
        assert picture.std() > 1


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from(SPLITS), st.integers(0, 396), st.integers(0, 396))
def test_a_picture_does_not_depend_on_earlier_renderings(name, split, index, earlier):
    dataset = TINY_DATASETS[name]
    first = digest(dataset, split, index)
    dataset.render("test", earlier)
    np.random.default_rng().random()
    assert digest(dataset, split, index) == first


def test_another_process_renders_the_same_pictures_and_labels():
    code = (
        "import hashlib\n"
        "from fpp_sweep.tiny.world import TINY_DATASETS\n"
        "for name, d in sorted(TINY_DATASETS.items(), reverse=True):\n"
        "    bits = hashlib.sha256(d.render('val', 17).tobytes()).hexdigest()\n"
        "    print(name, d.labels('val')[17], bits)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    rows = [tuple(line.split()) for line in out.splitlines()]
    expected = []
    for name, dataset in TINY_DATASETS.items():
        expected.append((name, str(dataset.labels("val")[17]), digest(dataset, "val", 17)))
    assert sorted(rows) == sorted(expected)


@every_dataset
def test_splits_and_indices_give_different_pictures(dataset):
    pictures = set()
    for split in SPLITS:
        pictures |= {digest(dataset, split, index) for index in range(12)}
    assert len(pictures) == 12 * len(SPLITS)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"digits"}))
@pytest.mark.parametrize("split", SPLITS)
def test_labels_are_balanced_and_not_sorted(name, split):
    dataset = TINY_DATASETS[name]
    labels = dataset.labels(split).tolist()
    assert len(labels) == dataset.sizes[split]
    counts = Counter(labels)
    assert len(counts) == len(dataset.classes)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len(set(labels[:50])) > 8


def test_every_real_digit_lies_in_exactly_one_split():
    scans = handwriting()
    assert sorted(np.concatenate(list(scans.indices.values())).tolist()) == list(range(len(scans.ink)))
    assert {split: len(indices) for split, indices in scans.indices.items()} == DIGIT_SIZES
    for split in SPLITS:
        assert np.bincount(scans.labels[scans.indices[split]], minlength=10).min() > 25


def test_a_rendered_digit_shows_its_scan_or_the_negative_of_its_scan():
    digits = TINY_DATASETS["digits"]
    scans = handwriting()
    for index in range(20):
        row = scans.indices["test"][index]
        assert digits.labels("test")[index] == scans.labels[row]
        inner = digits.render("test", index)[10:54, 10:54, 0].astype(float)
        at_size_of_scan = inner[:40, :40].reshape(8, 5, 8, 5).mean(axis=(1, 3))
        assert abs(np.corrcoef(at_size_of_scan.ravel(), scans.ink[row].ravel())[0, 1]) > 0.6


def test_training_uses_fewer_shifts_than_evaluation():
    in_evaluation: set[str] = set()
    for dataset in TINY_DATASETS.values():
        if isinstance(dataset, PaintedDataset):
            in_evaluation |= set(dataset.shifts)
    assert set(pool.SHIFTS) < in_evaluation == set(SHIFTS)


def test_captions_are_true_and_use_words_of_the_vocabulary_only():
    words, rng = set(vocabulary()), generator("test", "truth")
    kinds = Counter()
    for index in range(3_000):
        shown = describe(generator("test", index))
        text, stated = caption(shown, rng)
        assert agrees(encode(stated)[None], encode_picture(shown)[None]).all(), (shown, text)
        assert set(split_words(text)) <= words, text
        kinds[shown.kind] += 1
    assert set(kinds) == set(KINDS)


def test_classes_and_templates_use_words_of_the_vocabulary_only():
    words = set(vocabulary())
    phrases = [template.format("") for template in TEMPLATES]
    for dataset in TINY_DATASETS.values():
        phrases += dataset.classes
    for phrase in phrases:
        assert set(split_words(phrase)) <= words, phrase


def test_a_training_picture_depends_on_seed_and_index_only(tmp_path):
    counts = list(pool.draw_pool(tmp_path / "pool.npy", seed=5, size=6, workers=0))
    assert sum(counts) == 6
    pictures = np.load(tmp_path / "pool.npy")
    assert np.array_equal(pictures[4], pool.picture(5, 4))
    assert not np.array_equal(pictures[4], pool.picture(6, 4))


def test_the_world_needs_neither_torch_nor_open_clip():
    code = (
        "import sys, fpp_sweep.tiny.world as w\n"
        "w.TINY_DATASETS['digits'].render('test', 0)\n"
        "print(sorted({'torch', 'open_clip', 'torchvision', 'ray'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "[]"
