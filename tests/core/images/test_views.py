"""Views: their random distributions, their pixels against torchvision's and Pillow's, and their random streams."""

import hashlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from scipy import stats
from torchvision import transforms

from fpp_sweep.core.images import views as drawing
from fpp_sweep.core.images.reading import resolve_switches
from fpp_sweep.core.images.views import random_box, resize, sample_rng
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.spec.config import ViewConfig
from tests.kit.datasets import painted_dataset
from tests.kit.views import make_views

CROP_DRAWS = 22  # random numbers of a crop: two for each of ten tries, and two for the position


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return an image of smooth noise: interpolation matters, and neighbouring pixels are similar."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (max(1, height // 4), max(1, width // 4), 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def views_of(image, *, count=8, size=48, mix=True, flip=True, sample="a.jpg", seed=0, **config):
    config = ViewConfig(count=count, **config)
    rng = sample_rng(seed, "dtd", "test", sample)
    return make_views(image, config, Preprocess(size=size), augmix=mix, flip=flip, rng=rng)


def torchvision_view(image, size):
    preprocess = Preprocess(size=size)
    return transforms.Compose(
        [
            transforms.Resize(size, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(size),
            transforms.ToTensor(),
            transforms.Normalize(preprocess.mean, preprocess.std),
        ]
    )(image)


# --- the plain view


@pytest.mark.parametrize("shape", [(64, 64), (500, 375), (375, 500), (48, 48), (20, 31), (49, 48), (1, 1), (7, 200)])
def test_view_0_is_torchvisions_centre_crop(shape):
    image = noise(*shape)
    assert torch.equal(views_of(image)[0], torchvision_view(image, 48))


@pytest.mark.parametrize("mode", ["shortest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_view_0_is_resized_as_open_clip_resizes_for_the_model(mode, interpolation):
    from open_clip.transform import image_transform

    image, preprocess = noise(70, 50), Preprocess(size=48, interpolation=interpolation, resize_mode=mode)
    expected = image_transform(48, is_train=False, resize_mode=mode, interpolation=interpolation)(image)
    actual = make_views(image, ViewConfig(count=1), preprocess, augmix=False, flip=False, rng=np.random.default_rng(0))
    torch.testing.assert_close(actual[0], expected, atol=1e-6, rtol=0)


def test_view_0_ignores_the_random_stream():
    image = noise(64, 48)
    assert torch.equal(views_of(image, seed=0)[0], views_of(image, seed=1)[0])


def test_resizing_gives_the_same_bytes_with_every_pillow():
    """Images are enlarged or shrunk, with different factors for width and height."""
    rng, digest = np.random.default_rng(0), hashlib.sha256()
    for index in range(300):
        height, width, *size = rng.integers(1, 120, 4).tolist()
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        resample = Image.Resampling.BICUBIC if index % 3 else Image.Resampling.BILINEAR
        digest.update(resize(image, tuple(size), resample).tobytes())
    assert digest.hexdigest() == "0ea90c92773088e189ab620a90418ac9aab86874b0d77a374f9a95cfe342601d"


# --- random crops


def test_crops_have_the_distribution_of_torchvisions_crops():
    image, rng = noise(500, 375), np.random.default_rng(0)
    ours = np.array([random_box(image.size, (0.08, 1.0), row) for row in rng.random((4000, CROP_DRAWS)).tolist()])
    torch.manual_seed(0)
    boxes = []
    for _ in range(4000):
        top, left, height, width = transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
        boxes.append((left, top, left + width, top + height))
    theirs = np.array(boxes)

    def measures(boxes):
        width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        return width * height, width / height, boxes[:, 0], boxes[:, 1], boxes[:, 2], boxes[:, 3]

    for our_measure, their_measure in zip(measures(ours), measures(theirs), strict=True):
        assert stats.ks_2samp(our_measure, their_measure).pvalue > 0.01


@given(
    st.integers(1, 400),
    st.integers(1, 400),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=CROP_DRAWS, max_size=CROP_DRAWS),
)
def test_a_crop_lies_inside_any_image(width, height, draws):
    left, top, right, bottom = random_box((width, height), (0.08, 1.0), draws)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_if_no_try_fits_the_crop_is_torchvisions_central_crop():
    for shape in ((2000, 10), (10, 2000)):
        image = noise(*shape)
        torch.manual_seed(0)
        top, left, height, width = transforms.RandomResizedCrop.get_params(image, [0.9, 1.0], [3 / 4, 4 / 3])
        box = random_box(image.size, (0.9, 1.0), [0.5] * CROP_DRAWS)
        assert box == (left, top, left + width, top + height)


def test_a_plain_view_has_the_pixels_of_torchvision_for_the_same_box():
    image, count = noise(130, 97), 6
    views = views_of(image, count=count, mix=False, flip=False)
    rows = sample_rng(0, "dtd", "test", "a.jpg").random((count - 1, CROP_DRAWS + 1 + drawing.N_DRAWS)).tolist()
    preprocess = Preprocess(size=48)
    finish = transforms.Compose([transforms.ToTensor(), transforms.Normalize(preprocess.mean, preprocess.std)])
    for view, row in zip(views[1:], rows, strict=True):
        left, top, right, bottom = random_box(image.size, (0.08, 1.0), row[:CROP_DRAWS])
        crop = transforms.functional.resized_crop(image, top, left, bottom - top, right - left, [48, 48])
        # One level: Pillow resizes the sides in another order.
        assert (view - finish(crop)).abs().max() < 1.01 / 255 / min(preprocess.std)


def test_half_of_the_views_are_mirrored():
    image = noise(40, 40)
    without_flips = views_of(image, count=1001, size=8, mix=False, flip=False)[1:]
    with_flips = views_of(image, count=1001, size=8, mix=False, flip=True)[1:]
    mirrored = (with_flips == without_flips.flip(-1)).flatten(1).all(1)
    unchanged = (with_flips == without_flips).flatten(1).all(1)
    assert (mirrored ^ unchanged).all()
    assert 440 < mirrored.sum() < 560  # of 1,000 views; four standard deviations are 63


# --- AugMix


def test_the_random_decisions_of_augmix_have_the_published_distributions():
    mixing = drawing.plan_mixing(np.random.default_rng(0).random((3000, drawing.N_DRAWS)))
    share, chain_weights = mixing.weights[:, 0], mixing.weights[:, 1:]
    assert stats.kstest(share, "uniform").pvalue > 0.01  # Beta(1, 1)
    weights = chain_weights / chain_weights.sum(axis=1, keepdims=True)
    for weight in weights.T:
        assert stats.kstest(weight, stats.beta(1, 2).cdf).pvalue > 0.01  # a margin of Dirichlet(1, 1, 1)
    used = mixing.operations != drawing.NO_OPERATION
    depths = used.sum(axis=-1)
    assert set(depths.flat) == {1, 2, 3}
    assert stats.chisquare(np.bincount(depths.ravel())[1:]).pvalue > 0.01
    assert stats.chisquare(np.bincount(mixing.operations[used], minlength=9)).pvalue > 0.01
    levels = mixing.levels[used]
    assert stats.kstest(10 * abs(levels), stats.uniform(0.1, 0.9).cdf).pvalue > 0.01
    assert stats.binomtest(int((levels < 0).sum()), len(levels)).pvalue > 0.01


# AugMix's operations as its authors write them with Pillow for images of 224 pixels; `u` is the level from 0 to 1
PILLOW_OPERATIONS = {
    "_autocontrast": lambda image, u, sign: ImageOps.autocontrast(image),
    "_equalize": lambda image, u, sign: ImageOps.equalize(image),
    "_posterize": lambda image, u, sign: ImageOps.posterize(image, 4),
    "_rotate": lambda image, u, sign: image.rotate(sign * math.floor(3 * u), Image.Resampling.BILINEAR),
    "_solarize": lambda image, u, sign: ImageOps.solarize(image, 256 - math.floor(25.6 * u)),
    "_shear_x": lambda image, u, sign: pillow_affine(image, (1, sign * 0.03 * u, 0, 0, 1, 0)),
    "_shear_y": lambda image, u, sign: pillow_affine(image, (1, 0, 0, sign * 0.03 * u, 1, 0)),
    "_translate_x": lambda image, u, sign: pillow_affine(image, (1, 0, sign * math.floor(7.4667 * u), 0, 1, 0)),
    "_translate_y": lambda image, u, sign: pillow_affine(image, (1, 0, 0, 0, 1, sign * math.floor(7.4667 * u))),
}


def pillow_affine(image, matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


def with_low_contrast(image):
    """Return an image without black and white, whose contrast can be stretched; one channel is constant."""
    pixels = np.asarray(image) // 2 + 40
    pixels[..., 2] = 99
    return Image.fromarray(pixels)


@pytest.mark.parametrize("operation", drawing.OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("prepare", [lambda image: image, with_low_contrast, lambda image: image.point(lambda _: 0)])
def test_an_operation_equals_pillows_own_at_224_pixels(operation, prepare):
    image = prepare(noise(224, 224))
    for level in (0.1, 0.34, 0.5, 0.67, 0.83, 0.999):
        for sign in (1, -1):
            actual = np.asarray(operation(image, 0.1 * level * sign))
            expected = np.asarray(PILLOW_OPERATIONS[operation.__name__](image, level, sign))
            assert np.array_equal(actual, expected), (level, sign)


# --- random streams


def test_the_same_names_give_the_same_views_in_any_order():
    images = {name: noise(60, 50, seed) for seed, name in enumerate("abc")}
    forwards = {name: views_of(images[name], sample=name) for name in "abc"}
    backwards = {name: views_of(images[name], sample=name) for name in "cba"}
    assert all(torch.equal(forwards[name], backwards[name]) for name in "abc")


def test_another_sample_seed_dataset_or_split_gives_other_random_numbers():
    streams = [
        (0, "dtd", "test", "a"),
        (1, "dtd", "test", "a"),
        (0, "pets", "test", "a"),
        (0, "dtd", "val", "a"),
        (0, "dtd", "test", "b"),
        (0, "dtd", "test/a", ""),
    ]
    assert len({sample_rng(*names).random() for names in streams}) == len(streams)


def test_streams_are_the_same_on_every_machine():
    assert sample_rng(0, "dtd", "test", "a.jpg").random(3).tolist() == [
        0.7933979778085611,
        0.8880377788987208,
        0.06389828612567605,
    ]


@pytest.mark.parametrize(
    ("mix", "digest"),
    [
        (True, "f18148b348149b7bf5b860c99ba60aca81d1ea2628ba138f2cda6c45c842faa0"),
        (False, "9b9bceb735fc96b1fc4d7cbd63b2fd4e6c0fa005c5a7e5ed0887310a945141cd"),
    ],
)
def test_the_pixels_of_views_equal_the_recorded_pixels(mix, digest):
    """A change of the pixels makes cached features wrong: raise `keys.VIEWS` if you change these digests."""
    shapes = [(60, 50), (9, 200), (201, 48), (1, 1)]
    views = [views_of(noise(*shape), mix=mix, sample=f"{shape}") for shape in shapes]
    assert hashlib.sha256(torch.cat(views).numpy().tobytes()).hexdigest() == digest


@pytest.mark.parametrize("mix", [True, False])
def test_a_view_does_not_depend_on_the_number_of_views(mix):
    image = noise(64, 64)
    assert torch.equal(views_of(image, count=16, mix=mix)[:8], views_of(image, count=8, mix=mix))


def test_augmix_changes_every_view_but_the_plain_one_and_keeps_the_crops():
    image = noise(64, 64)
    plain, mixed = views_of(image, count=33, mix=False), views_of(image, count=33, mix=True)
    assert torch.equal(plain[0], mixed[0])
    differences = (plain - mixed).flatten(1).abs().mean(1)
    assert (differences[1:] > 0).all()
    assert differences[1:].mean() < 0.5  # views of different crops differ by about 1


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.booleans())
def test_any_shape_of_image_gives_finite_views(width, height, mix):
    views = views_of(noise(width, height), count=3, size=16, mix=mix)
    assert views.shape == (3, 3, 16, 16)
    assert views.dtype == torch.float32
    assert views.is_contiguous()
    assert views.isfinite().all()


def test_auto_switches_follow_the_dataset():
    on, off = painted_dataset(1, augmix=True, flip=True), painted_dataset(1, augmix=False, flip=False)
    assert resolve_switches(ViewConfig(), on) == (True, True)
    assert resolve_switches(ViewConfig(), off) == (False, False)
    assert resolve_switches(ViewConfig(augmix="on", flip="on"), off) == (True, True)
    assert resolve_switches(ViewConfig(augmix="off", flip="off"), on) == (False, False)
