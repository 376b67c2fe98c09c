"""Loading of models: features and gradients against open_clip's own, names, tags, digests, and refused models."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.nn import functional as F

from fpp_sweep.core.fpp import draw_noise
from fpp_sweep.core.methods.gradients import ByBackward, ByJacobian
from fpp_sweep.core.models.clip import BpeTokenizer, Clip, load
from fpp_sweep.core.models.names import ModelSpec, architectures, parse, require_model
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.core.text.padded import PaddedTower
from fpp_sweep.core.text.texts import class_texts, ensemble_features, gaussian_texts
from fpp_sweep.spec.config import FppConfig
from fpp_sweep.spec.errors import InputError
from tests.kit.models import SMALL_SETTINGS, save_openai_archive, small_clip

RESNET = {"layers": [1, 1, 1, 1], "width": 16, "head_width": 32, "image_size": 64}
NAMES = ["cat", "Boeing 737-800", "Caf\u00e9 cr\u00e8me", "a very long name indeed", "ox"]


def with_text(**changes: Any) -> dict[str, Any]:
    return {**SMALL_SETTINGS, "text_cfg": {**SMALL_SETTINGS["text_cfg"], **changes}}


SIGLIP = with_text(
    no_causal_mask=True,
    pool_type="last",
    proj_bias=True,
    norm_kwargs={"eps": 1e-6},
    act_kwargs={"approximate": "tanh"},
    context_length=24,
)
COCA = with_text(embed_cls=True, output_tokens=True, context_length=24)
COCA_VISION = {**SMALL_SETTINGS["vision_cfg"], "attentional_pool": True, "output_tokens": True}
# by name, with the settings that the fast text tower computes first
FAST: dict[str, dict[str, Any]] = {
    "small": SMALL_SETTINGS,
    "custom": {**with_text(pool_type="eos", eos_id=49407, mlp_ratio=3.0), "custom_text": True},
    "short": with_text(context_length=32),
    "resnet": {**SMALL_SETTINGS, "vision_cfg": RESNET},
}
PADDED: dict[str, dict[str, Any]] = {
    "two-sided": {**with_text(no_causal_mask=True), "custom_text": True},
    "last-pooled": with_text(pool_type="last", no_causal_mask=True, context_length=32),
    "two-sided-last": {**SIGLIP, "custom_text": True, "init_logit_bias": -10},
    "unprojected": {**with_text(proj_type="none", pool_type="last"), "embed_dim": 64, "custom_text": True},
    "layer-scale": with_text(ls_init_value=0.1),
    "query-norm": {**with_text(qk_norm=True), "custom_text": True},
    "coca": {
        **COCA,
        "vision_cfg": COCA_VISION,
        "custom_text": True,
        "multimodal_cfg": {"context_length": 24, "width": 64, "heads": 4, "layers": 1},
    },
}
OTHERS: dict[str, dict[str, Any]] = {
    "small-quickgelu": {**SMALL_SETTINGS, "quick_gelu": True},
    "large": {**SMALL_SETTINGS, "vision_cfg": {**SMALL_SETTINGS["vision_cfg"], "image_size": 48}},
    "wide": with_text(width=96),
    "hugging": with_text(hf_model_name="roberta-base"),
    "hugging-words": with_text(hf_tokenizer_name="no-user/nothing"),
    "oblong": {**SMALL_SETTINGS, "vision_cfg": {**SMALL_SETTINGS["vision_cfg"], "image_size": [32, 48]}},
}
SQUASHED = {"mean": (0.5, 0.4, 0.3), "std": (0.3, 0.2, 0.1), "interpolation": "bilinear", "resize_mode": "squash"}
PLAIN = {**SQUASHED, "interpolation": "bicubic", "resize_mode": "shortest"}


@pytest.fixture(scope="module", autouse=True)
def small_architectures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Add the small architectures to open_clip's."""
    import open_clip
    from open_clip import factory

    folder = tmp_path_factory.mktemp("configs")
    for name, config in {**FAST, **PADDED, **OTHERS}.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    before = dict(factory._MODEL_CONFIGS)
    open_clip.add_model_config(folder)
    yield
    factory._MODEL_CONFIG_PATHS.remove(folder)
    factory._MODEL_CONFIGS = before


@pytest.fixture
def tags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Add tags to open_clip's: some have weights on this machine, others cannot be loaded."""
    from open_clip import pretrained

    quick, plain = tmp_path / "quick.safetensors", tmp_path / "plain.safetensors"
    save_file(small_clip(seed=1).state_dict(), quick)
    save_file(small_clip(seed=2).state_dict(), plain)
    recipes = {
        "openai": {**PLAIN, "file": str(quick), "quick_gelu": True},
        "laion": {**PLAIN, "file": str(plain)},
        "elsewhere": {**PLAIN, "hf_hub": "no-user/nothing/"},
        "squashed": {**SQUASHED, "file": str(plain)},
    }
    monkeypatch.setitem(pretrained._PRETRAINED, "small", recipes)
    monkeypatch.setitem(pretrained._PRETRAINED, "resnet", {"only": {**SQUASHED, "hf_hub": "no-user/nothing/"}})


def random_model(name: str, **changes: Any) -> Any:
    """Return open_clip's model of an architecture with random weights."""
    import open_clip

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = open_clip.create_model(name, **changes).eval()
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                statistics: Any = module.running_mean
                statistics.uniform_()
    return model.requires_grad_(False)


def saved(path: Path, model: Any) -> str:
    torch.save(model.state_dict(), path)
    return str(path)


def message(spec: str) -> str:
    """Return the line with which a model is refused."""
    with pytest.raises(InputError) as caught:
        load(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def encoded(name: str, model: Any, texts: list[str]) -> torch.Tensor:
    """Return open_clip's features of texts."""
    import open_clip

    return F.normalize(model.encode_text(open_clip.get_tokenizer(name)(texts)), dim=-1)


def assert_computes_as(clip: Clip, name: str, model: Any) -> None:
    """Check that text and image features differ by at most 1e-5 from those of open_clip's model."""
    pixels = torch.randn(2, 3, *[clip.preprocess.size] * 2, generator=torch.Generator().manual_seed(0))
    context = open_prompt(clip, "a photo of a").context
    with torch.no_grad():
        texts = class_texts(clip.text, clip.tokenizer, NAMES)
        expected = encoded(name, model, [f"a photo of a {text}." for text in NAMES])
        torch.testing.assert_close(texts.features(context), expected, atol=1e-5, rtol=0)
        whole = ensemble_features(clip.text, clip.tokenizer, [[f"a photo of a {text}."] for text in NAMES])
        torch.testing.assert_close(whole, expected, atol=1e-5, rtol=0)
        expected = F.normalize(model.encode_image(pixels), dim=-1)
        torch.testing.assert_close(clip.image_features(pixels), expected, atol=1e-5, rtol=0)
    assert clip.logit_scale == pytest.approx(model.logit_scale.exp().item())


# --- features and gradients


@pytest.mark.parametrize("name", [*FAST, *PADDED])
def test_features_equal_open_clips(tmp_path: Path, name: str) -> None:
    model = random_model(name)
    spec = f"{name}:{saved(tmp_path / 'weights.pt', model)}"
    clip = load(spec)
    assert isinstance(clip.text, PaddedTower) == (name in PADDED)
    assert_computes_as(clip, name, model)


@pytest.mark.parametrize("name", ["small", "small-quickgelu"])
def test_features_equal_open_clips_with_the_requested_activation(tmp_path: Path, name: str) -> None:
    quick = random_model("small", force_quick_gelu=True)
    gelu = random_model("small")
    gelu.load_state_dict(quick.state_dict())
    clip = load(f"{name}:{saved(tmp_path / 'weights.pt', quick)}")
    same, other = (gelu, quick) if name == "small" else (quick, gelu)
    assert_computes_as(clip, "small", same)
    with pytest.raises(AssertionError, match="not close"):
        assert_computes_as(clip, "small", other)


@pytest.mark.parametrize("form", [ByBackward, ByJacobian])
@pytest.mark.parametrize("name", ["two-sided-last", "two-sided", "coca"])
def test_gradients_of_a_padded_tower_equal_autograd_through_open_clips_model(
    tmp_path: Path, name: str, form: type[ByBackward | ByJacobian]
) -> None:
    import open_clip

    model = random_model(name)
    clip = load(f"{name}:{saved(tmp_path / 'weights.pt', model)}")
    context = open_prompt(clip, "a photo of a").context
    gradients = torch.randn(2, len(NAMES), clip.text.feature_size, generator=torch.Generator().manual_seed(0))
    actual = form(class_texts(clip.text, clip.tokenizer, NAMES), context).backward(gradients)

    ids = open_clip.get_tokenizer(name)([f"a photo of a {text}." for text in NAMES])
    embeddings = model.text.token_embedding(ids).requires_grad_()
    model.text.token_embedding.register_forward_hook(lambda *_: embeddings)
    begin = 1  # SOS
    for gradient, found in zip(gradients, actual, strict=True):
        features = F.normalize(model.encode_text(ids), dim=-1)
        (by_embeddings,) = torch.autograd.grad((features * gradient).sum(), embeddings)
        expected = by_embeddings[:, begin : begin + len(context)].sum(0)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-3)


def test_a_padded_tower_has_noisy_and_gaussian_texts(tmp_path: Path) -> None:
    clip = load(f"two-sided-last:{saved(tmp_path / 'weights.pt', random_model('two-sided-last'))}")
    context = open_prompt(clip, "a photo of a").context
    texts = class_texts(clip.text, clip.tokenizer, NAMES)
    plain = texts.features(context)
    for config in (FppConfig(), FppConfig(noise_shared=False), FppConfig(noise_positions="name")):
        noise = next(draw_noise(texts, len(context), config, torch.Generator().manual_seed(0)))
        noisy = texts.noisy_features(context, noise)
        assert noisy.shape == (config.draws, *plain.shape)
        assert (noisy - plain).abs().amax((1, 2)).min() > 1e-3
    silent = FppConfig(context_var=1e-30, class_var=1e-30)
    noise = next(draw_noise(texts, len(context), silent, torch.Generator().manual_seed(0)))
    torch.testing.assert_close(texts.noisy_features(context, noise)[0], plain, atol=1e-5, rtol=0)
    random = gaussian_texts(clip.text, clip.tokenizer, 5, torch.Generator().manual_seed(0))
    assert random.features(context).shape == (5, plain.shape[1])


def test_a_text_that_does_not_fit_a_padded_tower_is_refused(tmp_path: Path) -> None:
    clip = load(f"two-sided-last:{saved(tmp_path / 'weights.pt', random_model('two-sided-last'))}")
    with pytest.raises(InputError, match=r"class name 'dog dog.* is 32 tokens long; the model has 24"):
        class_texts(clip.text, clip.tokenizer, ["ok", " ".join(["dog"] * 30)])
    texts = class_texts(clip.text, clip.tokenizer, ["ok", " ".join(["dog"] * 18)])
    texts.require_room(3, [])
    with pytest.raises(InputError, match="with a prompt of 4 tokens needs 25 tokens"):
        texts.require_room(4, [])


def test_loading_prints_nothing_and_does_not_change_the_random_stream(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path / "weights.pt", random_model("small"))
    before = torch.random.get_rng_state()
    load(f"small-quickgelu:{path}")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


# --- published models


# by the reason; every other tag of open_clip 3.3.0 is accepted
REFUSED_TAGS = {
    "nllb-clip-base/v1",
    "nllb-clip-base-siglip/v1",
    "nllb-clip-base-siglip/mrl",
    "nllb-clip-large/v1",
    "nllb-clip-large-siglip/v1",
    "nllb-clip-large-siglip/mrl",
    "roberta-ViT-B-32/laion2b_s12b_b32k",
    "xlm-roberta-base-ViT-B-32/laion5b_s13b_b90k",
    "xlm-roberta-large-ViT-H-14/frozen_laion5b_s13b_b90k",
}


def test_all_tags_but_those_with_a_text_tower_of_transformers_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    from open_clip import list_pretrained

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find_spec("json" if name == "transformers" else name))
    models = [f"{name}/{tag}" for name, tag in list_pretrained() if name in architectures()]
    refused = set()
    for model in models:
        try:
            require_model(model)
        except InputError as error:
            assert "its text tower is a model of transformers" in str(error)  # noqa: PT017
            refused.add(model)
    assert len(models) >= 196
    assert refused == REFUSED_TAGS


@pytest.mark.skipif(importlib.util.find_spec("transformers") is not None, reason="its library is installed")
def test_a_tokenizer_whose_library_is_missing_is_named() -> None:
    with pytest.raises(InputError, match="needs the tokenizer timm/ViT-B-16-SigLIP of Hugging Face; pip install"):
        require_model("ViT-B-16-SigLIP/webli")


@pytest.mark.usefixtures("tags")
@pytest.mark.parametrize(("spec", "quick"), [("small/openai", True), ("small/OpenAI", True), ("small/laion", False)])
def test_the_weights_of_a_tag_get_the_activation_that_they_were_trained_with(spec: str, quick: bool) -> None:
    clip = load(spec)
    assert_computes_as(clip, "small", small_clip(seed=1 if quick else 2, quick_gelu=quick))
    assert (clip.name, clip.preprocess.mean, clip.preprocess.std) == (spec, PLAIN["mean"], PLAIN["std"])


@pytest.mark.usefixtures("tags")
def test_images_are_preprocessed_as_the_tag_says_or_as_all_tags_of_a_files_architecture(tmp_path: Path) -> None:
    path = saved(tmp_path / "r.pt", random_model("resnet"))
    for spec in ("small/squashed", f"resnet:{path}"):
        preprocess = load(spec).preprocess
        assert (preprocess.resize_mode, preprocess.interpolation) == ("squash", "bilinear")
        assert preprocess.mean == SQUASHED["mean"]


@pytest.mark.usefixtures("tags")
def test_a_file_that_may_need_other_preprocessing_is_warned_of_by_the_names_of_its_tags(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path / "weights.pt", small_clip())
    load(f"small-quickgelu:{path}")  # one tag
    assert not caplog.messages
    load(f"small:{path}")
    activation, warning = caplog.messages
    assert "computes with GELU" in activation
    assert "wrong results for the weights of small/laion, small/elsewhere, small/squashed; load those" in warning


@pytest.mark.usefixtures("tags")
def test_weights_that_cannot_be_fetched_are_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    text = message("small/elsewhere")
    assert text.startswith("small/elsewhere: could not fetch its weights (")
    assert text.endswith("; connect to the network, or write small:PATH")


# --- names


@settings(deadline=None)
@given(
    name=st.sampled_from(["ViT-B-16", "RN50"]),
    rest=st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="~"), min_size=1),
)
def test_a_model_name_is_split_into_its_parts(name: str, rest: str) -> None:
    assert parse(f"{name}:{rest}") == ModelSpec(architecture=name, path=Path(rest))
    assert parse(f"{name}/{rest}") == ModelSpec(architecture=name, tag=rest)


@pytest.mark.usefixtures("tags")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("vit-b16/openai", "unknown model 'vit-b16', did you mean 'ViT-B-16'?"),
        ("tinny", "unknown model 'tinny', did you mean 'tiny'?"),
        ("/models/b16.pt", "write NAME:PATH"),
        ("", "names no architecture"),
        ("tiny/openai", "takes nothing after its name"),
        ("tiny:file.pt", "takes nothing after its name"),
        ("small", "add /TAG (such as /openai) or :PATH"),
        ("small:", "add /TAG (such as /openai) or :PATH"),
        ("small/opena1", "unknown tag of small 'opena1', did you mean 'openai'?"),
        ("ViT-S-16/openai", "has no tags in open_clip; write ViT-S-16:PATH"),
        ("hugging:x.pt", "its text tower is a model of transformers (roberta-base)"),
        ("oblong:x.pt", "its images are not square but [32, 48]"),
    ],
)
def test_a_wrong_model_name_is_refused_with_a_remedy(spec: str, expected: str) -> None:
    assert expected in message(spec)


def test_a_misspelt_name_is_refused_without_importing_open_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    from open_clip import list_models

    monkeypatch.delitem(sys.modules, "open_clip")
    assert "did you mean 'ViT-B-16'?" in message("ViT-B-61/openai")
    assert set(architectures()) == set(list_models()) - {*FAST, *PADDED, *OTHERS}
    assert "open_clip" not in sys.modules


# --- files that cannot be read


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "weights.pt", small_clip())
    for name in ("wide", "resnet"):
        text = message(f"{name}:{path}")
        assert text.startswith(f"{path}: does not fit {name}: ")
        assert len(text) < 400


def test_openais_archive_is_refused_with_the_line_that_converts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_openai_archive(tmp_path / "archive.pt")
    text = message("small-quickgelu:archive.pt")
    assert text.startswith("archive.pt: a TorchScript archive, which is not read; convert it once: python -c '")


@pytest.mark.parametrize("content", [b"", b"hello, this is no checkpoint\n", None])
def test_a_damaged_or_missing_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.pt"
    if content is not None:
        path.write_bytes(content)
    assert message(f"small:{path}").startswith(f"{path}: ")


# --- digests, tokens and the embedded model


def test_digests_change_with_weights_and_activation(tmp_path: Path) -> None:
    state = small_clip().state_dict()

    def loaded(name: str, architecture: str = "small", **changes: Any) -> Clip:
        torch.save({**state, **changes}, tmp_path / f"{name}.pt")
        return load(f"{architecture}:{tmp_path / name}.pt")

    base = loaded("base")
    save_file(state, tmp_path / "same.safetensors")
    same = load(f"small:{tmp_path / 'same.safetensors'}")
    assert (same.digest, same.image_digest) == (base.digest, base.image_digest)
    text = loaded("text", **{"ln_final.bias": state["ln_final.bias"] + 1})
    assert text.image_digest == base.image_digest
    assert text.digest != base.digest
    image = loaded("image", **{"visual.ln_post.bias": state["visual.ln_post.bias"] + 1})
    for other in (image, loaded("quick", "small-quickgelu")):
        assert other.image_digest != base.image_digest
        assert other.digest != base.digest


def test_the_embedded_model_has_the_features_that_its_loader_gives() -> None:
    from fpp_sweep.tiny import model

    clip = load("tiny")
    assert_computes_as(clip, "ViT-B-16", model.load()[0])
    assert (clip.name, clip.preprocess.size) == ("tiny", model.IMAGE_SIZE)
    assert clip.embedding_scale > 1


@pytest.fixture(scope="module")
def tokenizer() -> BpeTokenizer:
    return BpeTokenizer()


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=30))
def test_tokens_equal_those_of_open_clip(tokenizer: BpeTokenizer, text: str) -> None:
    from open_clip import tokenize

    ids = tokenize(text, context_length=200)[0].tolist()
    assert [tokenizer.sos, *tokenizer.encode(text), tokenizer.eot] == ids[: ids.index(tokenizer.eot) + 1]
