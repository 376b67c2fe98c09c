"""Loading of models: their features, activations, names, digests and tokens, and refused models."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.models import open_clip_models
from fpp_sweep.core.models.building import BpeTokenizer
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.models.loading import load
from fpp_sweep.core.models.model_names import ModelSpec, architectures, parse, tags_in_source
from fpp_sweep.core.text.packing import Packing
from fpp_sweep.spec.errors import InputError
from tests.kit.models import OPENAI_SETTINGS, SMALL_SETTINGS, half_precision_clip, save_openai_archive, small_clip

RESNET = {"layers": [1, 1, 1, 1], "width": 16, "head_width": 32, "image_size": 64}
WORDS = [
    "cat",
    "a photo of a cat.",
    "Boeing 737-800",
    "  Caf\u00e9  &amp; crème ",
    "a photo of a very long name indeed.",
]


def with_text(**settings: Any) -> dict[str, Any]:
    return {**SMALL_SETTINGS, "text_cfg": {**SMALL_SETTINGS["text_cfg"], **settings}}


# only `small` exists with both activations
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "small": SMALL_SETTINGS,
    "small-quickgelu": {**SMALL_SETTINGS, "quick_gelu": True},
    "large": {**SMALL_SETTINGS, "vision_cfg": {**SMALL_SETTINGS["vision_cfg"], "image_size": 48}},
    "deep": with_text(layers=3),
    "custom": {**with_text(pool_type="eos", eos_id=49407, mlp_ratio=3.0), "custom_text": True},
    "resnet": {**SMALL_SETTINGS, "vision_cfg": RESNET, "quick_gelu": True},
    "one-of-a-kind": {**SMALL_SETTINGS, "embed_dim": 48},
    "two-sided": with_text(no_causal_mask=True),
    "last-pooled": with_text(pool_type="last"),
    "eos-pooled": with_text(pool_type="eos"),
    "class-token": with_text(embed_cls=True),
    "layer-scale": with_text(ls_init_value=1e-4),
    "biased": with_text(proj_bias=True),
    "unprojected": with_text(proj_type="none"),
    "query-norm": with_text(qk_norm=True),
    "eps": with_text(norm_kwargs={"eps": 1e-6}),
    "tanh": with_text(act_kwargs={"approximate": "tanh"}),
    "hugging": with_text(hf_model_name="roberta-base"),
    "hugging-words": with_text(hf_tokenizer_name="roberta-base"),
    "words": with_text(vocab_size=32000),
    "logit-bias": {**SMALL_SETTINGS, "init_logit_bias": -10},
    "captioner": {**SMALL_SETTINGS, "multimodal_cfg": {"width": 64}},
    "oblong": {**SMALL_SETTINGS, "vision_cfg": {**SMALL_SETTINGS["vision_cfg"], "image_size": [32, 48]}},
}
PREPROCESSING = {"mean": (0.5, 0.4, 0.3), "std": (0.3, 0.2, 0.1), "interpolation": "bicubic", "resize_mode": "shortest"}
CLIPS_PREPROCESSING = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}


@pytest.fixture(scope="module", autouse=True)
def small_architectures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Add the small architectures to open_clip's."""
    import open_clip
    from open_clip import factory

    folder = tmp_path_factory.mktemp("configs")
    for name, config in ARCHITECTURES.items():
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
        "openai": {**PREPROCESSING, "file": str(quick), "quick_gelu": True},
        "laion": {**PREPROCESSING, "file": str(plain)},
        "elsewhere": {**PREPROCESSING, "hf_hub": "no-user/nothing/"},
        "clips": {**CLIPS_PREPROCESSING, "hf_hub": "no-user/nothing/"},
        "squashed": {**PREPROCESSING, "resize_mode": "squash"},
        "smooth": {**PREPROCESSING, "interpolation": "bilinear"},
    }
    monkeypatch.setitem(pretrained._PRETRAINED, "small", recipes)
    monkeypatch.setitem(pretrained._PRETRAINED, "small-quickgelu", {"openai": recipes["openai"]})
    monkeypatch.setitem(pretrained._PRETRAINED, "large", {"only": recipes["squashed"]})


def saved(path: Path, state: object) -> Path:
    torch.save(state, path)
    return path


def text_features(clip: Clip, texts: Sequence[str]) -> Tensor:
    """Return the engine's features of texts, which share SOS and are packed after it."""
    rows = [torch.tensor([*clip.tokenizer.encode(text), clip.tokenizer.eot]) for text in texts]
    packing = Packing.of_lengths([len(row) for row in rows])
    packed = torch.cat([rows[int(text)] for text in packing.order])
    table = clip.text.token_embedding
    return clip.text.features(table[[clip.tokenizer.sos]][None], table[packed][None], packing)[0]


def assert_computes_as(clip: Clip, model: Any) -> None:
    """Check that text and image features differ by at most 1e-5 from those of open_clip's model."""
    from open_clip import tokenize

    size = clip.preprocess.size
    pixels = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    model = model.float().eval()
    with torch.no_grad():
        expected = F.normalize(model.encode_text(tokenize(WORDS)), dim=-1)
        torch.testing.assert_close(text_features(clip, WORDS), expected, atol=1e-5, rtol=0)
        expected = F.normalize(model.encode_image(pixels), dim=-1)
        torch.testing.assert_close(clip.image_features(pixels), expected, atol=1e-5, rtol=0)
    assert clip.logit_scale == pytest.approx(model.logit_scale.exp().item())


def assert_differs_from(clip: Clip, model: Any) -> None:
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        assert_computes_as(clip, model)


def message(spec: str) -> str:
    """Return the line with which a model is refused."""
    with pytest.raises(InputError) as caught:
        load(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- features


@pytest.mark.parametrize(
    ("name", "quick"), [("small+gelu", False), ("small+quickgelu", True), ("small-quickgelu", True)]
)
def test_features_equal_open_clips_with_the_requested_activation(tmp_path: Path, name: str, quick: bool) -> None:
    reference = small_clip(seed=3, quick_gelu=quick)
    path = saved(tmp_path / "bare.pt", reference.state_dict())
    clip = load(f"{name}:{path}")
    assert clip.text.activation == ("quick_gelu" if quick else "gelu")
    assert clip.text.heads == 4  # from the config; OpenAI's rule, width / 64, would give 1
    assert_computes_as(clip, reference)
    assert_differs_from(clip, small_clip(seed=3, quick_gelu=not quick))


def test_features_equal_open_clips_for_a_separate_text_module(tmp_path: Path) -> None:
    from open_clip.model import CustomTextCLIP

    reference = CustomTextCLIP(**{key: value for key, value in ARCHITECTURES["custom"].items() if key != "custom_text"})
    state = reference.state_dict()
    assert "text.ln_final.weight" in state
    bare = {name.removeprefix("text."): value for name, value in state.items()}
    for path in (saved(tmp_path / "own.pt", state), saved(tmp_path / "bare.pt", bare)):
        assert_computes_as(load(f"custom:{path}"), reference)


def test_features_equal_open_clips_for_a_resnet(tmp_path: Path) -> None:
    reference = small_clip(vision_cfg=RESNET, quick_gelu=True)
    for module in reference.modules():
        if isinstance(module, torch.nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.uniform_()
    save_file(reference.state_dict(), tmp_path / "r.safetensors")
    clip = load(f"resnet:{tmp_path / 'r.safetensors'}")
    assert clip.preprocess.size == 64
    assert_computes_as(clip, reference)


@pytest.mark.slow
def test_features_equal_open_clips_for_the_real_architecture(tmp_path: Path) -> None:
    from open_clip import get_model_config
    from open_clip.model import CLIP, convert_weights_to_fp16

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        reference = CLIP(**get_model_config("ViT-B-16"), quick_gelu=True)
    convert_weights_to_fp16(reference)
    path = saved(tmp_path / "ViT-B-16.pt", reference.state_dict())
    clip = load(f"ViT-B-16+quickgelu:{path}")
    assert (clip.text.activation, clip.text.heads, clip.text.width, clip.text.positions) == ("quick_gelu", 8, 512, 77)
    assert_computes_as(clip, reference)


def test_everything_is_frozen_float32_and_in_evaluation_mode(tmp_path: Path) -> None:
    clip = load(f"small+quickgelu:{saved(tmp_path / 'half.pt', half_precision_clip().state_dict())}")
    weights = [*clip.visual.parameters(), clip.text.token_embedding, *clip.text.projection, *clip.text.blocks[0].qkv]
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert not any(weight.requires_grad for weight in weights)
    assert not any(module.training for module in clip.visual.modules())
    assert clip.embedding_scale == 1.0


def test_loading_prints_nothing_and_does_not_change_the_random_stream(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path / "half.pt", half_precision_clip().state_dict())
    before = torch.random.get_rng_state()
    load(f"small+quickgelu:{path}")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


# --- activations


@pytest.fixture(scope="module")
def openai_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write the same weights in each file format that identifies them as OpenAI's."""
    folder = tmp_path_factory.mktemp("openai")
    reference = half_precision_clip(seed=4)
    save_openai_archive(folder / "archive.pt", seed=4)
    saved(folder / "half.pt", {**reference.state_dict(), **OPENAI_SETTINGS})
    saved(folder / "single.pt", {**reference.float().state_dict(), **OPENAI_SETTINGS})
    return sorted(folder.iterdir())


@pytest.mark.parametrize("name", ["small", "small+quickgelu", "small-quickgelu"])
def test_openais_weights_get_quick_gelu_under_every_name(openai_files: list[Path], name: str) -> None:
    reference = half_precision_clip(seed=4)
    for path in openai_files:
        clip = load(f"{name}:{path}")
        assert clip.text.activation == "quick_gelu"
        assert_computes_as(clip, reference)


def test_gelu_for_openais_weights_is_an_error(openai_files: list[Path]) -> None:
    for path in openai_files:
        assert "computes with quickgelu" in message(f"small+gelu:{path}")


def test_a_state_dict_of_unknown_activation_is_refused_where_both_exist(tmp_path: Path) -> None:
    path = saved(tmp_path / "bare.pt", small_clip().state_dict())
    assert message(f"small:{path}") == (
        f"{path} does not tell which activation it was trained with; write small+gelu:{path} or small+quickgelu:{path}"
    )


def test_a_state_dict_gets_the_only_activation_of_its_architecture_unless_the_name_has_another(tmp_path: Path) -> None:
    path = saved(tmp_path / "bare.pt", small_clip(embed_dim=48).state_dict())
    assert load(f"one-of-a-kind:{path}").text.activation == "gelu"
    assert load(f"one-of-a-kind+quickgelu:{path}").text.activation == "quick_gelu"


def test_open_clips_fp16_weights_compute_with_the_activation_that_the_user_names(tmp_path: Path) -> None:
    """A GELU model in open_clip's fp16 mixes half and single precision as OpenAI's files do."""
    reference = half_precision_clip(quick_gelu=False)
    path = saved(tmp_path / "laion.pt", reference.state_dict())
    assert_computes_as(load(f"small+gelu:{path}"), reference)
    assert "write small+gelu:" in message(f"small:{path}")


def test_open_clips_training_checkpoint_does_not_tell_its_activation(tmp_path: Path) -> None:
    """`--force-quick-gelu` trains QuickGELU under every name, and the file does not record it."""
    state = {f"module.{name}": value for name, value in small_clip().state_dict().items()}
    path = saved(tmp_path / "epoch_1.pt", {"epoch": 1, "name": "run", "state_dict": state})
    assert "write small+gelu:" in message(f"small:{path}")
    assert load(f"small+gelu:{path}").text.activation == "gelu"
    assert load(f"small+quickgelu:{path}").text.activation == "quick_gelu"
    assert load(f"small-quickgelu:{path}").text.activation == "quick_gelu"


@pytest.mark.usefixtures("tags")
@pytest.mark.parametrize(
    ("spec", "quick"),
    [
        ("small/openai", True),
        ("small/OpenAI", True),
        ("small-quickgelu/openai", True),
        ("small+quickgelu/openai", True),
        ("small/laion", False),
        ("small+gelu/laion", False),
    ],
)
def test_the_weights_of_a_tag_get_the_activation_that_they_were_trained_with(spec: str, quick: bool) -> None:
    clip = load(spec)
    assert_computes_as(clip, small_clip(seed=1 if quick else 2, quick_gelu=quick))
    assert (clip.name, clip.preprocess.mean, clip.preprocess.std) == (spec, PREPROCESSING["mean"], PREPROCESSING["std"])


@pytest.mark.usefixtures("tags")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("small+gelu/openai", "tag 'openai' computes with quickgelu"),
        ("small+quickgelu/laion", "tag 'laion' computes with gelu"),
        ("small-quickgelu/laion", "trained with gelu; write small/laion"),
        ("small-quickgelu+gelu/openai", "small-quickgelu computes with quickgelu"),
    ],
)
def test_an_activation_that_contradicts_the_tag_is_an_error(spec: str, expected: str) -> None:
    assert expected in message(spec)


@pytest.mark.parametrize("name", ["ViT-B-16", "ViT-B-16-quickgelu", "RN50", "ViT-L-14-336"])
def test_openais_tags_have_quick_gelu_in_open_clip(name: str) -> None:
    assert open_clip_models._tag_recipe(ModelSpec(architecture=name, tag="openai"))["quick_gelu"] is True


# --- names and tags


@settings(deadline=None)
@given(
    name=st.sampled_from(["ViT-B-16", "RN50"]),
    activation=st.sampled_from([("", None), ("+gelu", "gelu"), ("+quickgelu", "quick_gelu")]),
    rest=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1),
    separator=st.sampled_from("/:"),
)
def test_a_model_name_is_split_into_its_parts(
    name: str, activation: tuple[str, Any], rest: str, separator: str
) -> None:
    assume(not rest.startswith("~"))  # the home folder; see the tests of paths
    suffix, activation_name = activation
    tag, path = (rest, None) if separator == "/" else (None, Path(rest))
    expected = ModelSpec(architecture=name, activation=activation_name, tag=tag, path=path)
    assert parse(f"{name}{suffix}{separator}{rest}") == expected


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
        ("ViT-S-16", "open_clip knows none for it"),
        ("small/opena1", "unknown tag of small 'opena1', did you mean 'openai'?"),
        ("ViT-S-16/openai", "has no tags in open_clip; write ViT-S-16:PATH"),
        ("small+quickgel/openai", "unknown activation 'quickgel', did you mean 'quickgelu'?"),
    ],
)
def test_a_wrong_model_name_is_refused_with_a_remedy(spec: str, expected: str) -> None:
    assert expected in message(spec)


@pytest.mark.usefixtures("tags")
@pytest.mark.parametrize(
    ("tag", "advice"),
    [
        ("clips", "download them elsewhere and write small:PATH"),
        ("elsewhere", "copy the cache of Hugging Face from a machine that has them"),  # a file would get CLIP's mean
    ],
)
def test_weights_that_cannot_be_fetched_are_refused_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tag: str, advice: str
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert message(f"small/{tag}") == (
        f"model 'small/{tag}': could not fetch its weights; connect to the network, or {advice}"
    )


def test_a_misspelt_name_is_refused_without_importing_open_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    from open_clip import list_models

    monkeypatch.delitem(sys.modules, "open_clip")
    assert "did you mean 'ViT-B-16'?" in message("ViT-B-61/openai")
    assert set(architectures()) == set(list_models()) - set(ARCHITECTURES)
    assert "open_clip" not in sys.modules


# --- architectures that the engine does not support


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("two-sided", "text_cfg.no_causal_mask=True"),
        ("last-pooled", "text_cfg.pool_type=last"),
        ("eos-pooled", "text_cfg.eos_id=2, where CLIP's EOT is 49407"),
        ("class-token", "text_cfg.embed_cls=True"),
        ("layer-scale", "text_cfg.ls_init_value=0.0001"),
        ("biased", "text_cfg.proj_bias=True"),
        ("unprojected", "text_cfg.proj_type=none"),
        ("query-norm", "text_cfg.qk_norm=True"),
        ("eps", "text_cfg.norm_kwargs=..."),
        ("tanh", "text_cfg.act_kwargs=..."),
        ("hugging", "text_cfg.hf_model_name=roberta-base"),
        ("hugging-words", "text_cfg.hf_tokenizer_name=roberta-base"),
        ("words", "text_cfg.vocab_size=32000, where CLIP has 49408"),
        ("logit-bias", "init_logit_bias=-10"),
        ("captioner", "multimodal_cfg=..."),
        ("oblong", "not square"),
        ("ViT-B-16-SigLIP", "no_causal_mask=True"),
    ],
)
def test_an_unsupported_architecture_is_refused_by_its_setting(name: str, expected: str) -> None:
    text = message(f"{name}:file.pt")
    assert f"model {name!r} is not supported" in text
    assert expected in text


@pytest.mark.usefixtures("tags")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("small/squashed", "resize_mode=squash"),
        ("small/smooth", "interpolation=bilinear"),
        ("large:file.pt", "resize_mode=squash"),  # from the only tag of `large`
    ],
)
def test_models_with_other_preprocessing_are_refused(spec: str, expected: str) -> None:
    assert f"is not supported: its images need {expected}" in message(spec)


def test_a_file_that_may_need_other_preprocessing_is_warned_of_by_the_names_of_its_tags(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """open_clip's ViT-L-14/laion2b_s32b_b82k has another mean than the other tags."""
    spec = ModelSpec(architecture="ViT-L-14", path=tmp_path / "file.pt")
    open_clip_models._warn_of_other_preprocessing(spec, "quick_gelu")  # no such tag has this activation
    assert not caplog.messages
    open_clip_models._warn_of_other_preprocessing(spec, "gelu")
    (warning,) = caplog.messages
    assert warning == (
        f"{spec.path}: its images are preprocessed as CLIP's, which gives wrong results for the weights of "
        "ViT-L-14/laion2b_s32b_b82k; load those by that name"
    )


@pytest.mark.usefixtures("tags")
def test_only_files_that_are_not_openais_may_need_other_preprocessing(
    tmp_path: Path, openai_files: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    load(f"small:{openai_files[0]}")
    assert not caplog.messages
    load(f"small+gelu:{saved(tmp_path / 'bare.pt', small_clip().state_dict())}")
    (warning,) = caplog.messages
    assert "wrong results for the weights of small/laion, small/elsewhere, small/squashed, small/smooth;" in warning


# --- weights that do not fit


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("large", {}, "visual.positional_embedding has shape (5, 64) instead of (10, 64)"),
        ("deep", {}, "12 weights missing (transformer.resblocks.2.ln_1.weight)"),
        ("small", {"extra": torch.ones(2)}, "1 weights too many (extra)"),
        ("small", {"ln_final.bias": torch.ones(64).char()}, "ln_final.bias holds torch.int8, not torch.float32"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_the_first_is_named(
    tmp_path: Path, name: str, change: dict[str, Tensor], expected: str
) -> None:
    path = saved(tmp_path / "weights.pt", {**small_clip().state_dict(), **change})
    assert message(f"{name}+gelu:{path}") == f"{path}: does not fit {name}: {expected}"


def test_a_file_of_other_weights_is_refused_with_the_number_of_missing_weights(tmp_path: Path) -> None:
    path = saved(tmp_path / "other.pt", {"weight": torch.ones(2)})
    assert re.search(r"\d\d weights missing \(.*\), 1 weights too many \(weight\)", message(f"small+gelu:{path}"))


@pytest.mark.parametrize("name", ["small", "small+quickgelu"])
def test_a_file_of_transformers_is_refused_by_its_layout_and_not_for_its_activation(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    weights = ("text_model.final_layer_norm.weight", "vision_model.post_layernorm.weight", "text_projection.weight")
    save_file({weight: torch.zeros(4) for weight in weights}, path)
    assert message(f"{name}:{path}") == (
        f"{path}: weights in the layout of Hugging Face's transformers, which is not supported; give the same model's "
        "file of open_clip (open_clip_model.safetensors) or of OpenAI, or published weights by NAME/TAG"
    )


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    assert message(f"small:{tmp_path / 'absent.pt'}") == f"{tmp_path / 'absent.pt'}: no such file"
    (tmp_path / "text.pt").write_text("hello")
    assert message(f"small:{tmp_path / 'text.pt'}").startswith(f"{tmp_path / 'text.pt'}: ")


def test_a_logit_scale_of_shape_1_is_read_as_a_number(tmp_path: Path) -> None:
    state = small_clip().state_dict()
    path = saved(tmp_path / "scale.pt", {**state, "logit_scale": state["logit_scale"].reshape(1)})
    assert load(f"small+gelu:{path}").logit_scale == pytest.approx(1 / 0.07)


# --- digests


def test_digests_change_with_weights_and_activation(tmp_path: Path) -> None:
    state = small_clip().state_dict()
    text = {**state, "ln_final.bias": state["ln_final.bias"] + 1}
    image = {**state, "visual.ln_post.bias": state["visual.ln_post.bias"] + 1}
    base = load(f"small+gelu:{saved(tmp_path / 'base.pt', state)}")
    save_file(state, tmp_path / "same.safetensors")
    same = load(f"small+gelu:{tmp_path / 'same.safetensors'}")
    assert (same.digest, same.image_digest) == (base.digest, base.image_digest)
    other_text = load(f"small+gelu:{saved(tmp_path / 'text.pt', text)}")
    assert other_text.image_digest == base.image_digest
    assert other_text.digest != base.digest
    other_image = load(f"small+gelu:{saved(tmp_path / 'image.pt', image)}")
    other_activation = load(f"small+quickgelu:{tmp_path / 'base.pt'}")
    for other in (other_image, other_activation):
        assert other.image_digest != base.image_digest
        assert other.digest != base.digest


# --- the embedded model


def test_the_embedded_model_has_the_features_that_its_loader_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fpp_sweep.tiny import model
    from tools.train_tiny.weights import save

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save(model.build(), tmp_path / "tiny.safetensors", {"embedding_scale": "4.75"})
    monkeypatch.setattr(model, "SHIPPED", tmp_path / "tiny.safetensors")
    clip = load("tiny")
    assert_computes_as(clip, model.load()[0])
    assert (clip.name, clip.embedding_scale, clip.preprocess.size) == ("tiny", 4.75, model.IMAGE_SIZE)


# --- tokens


@pytest.fixture(scope="module")
def tokenizer() -> BpeTokenizer:
    return BpeTokenizer()


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=30))
def test_tokens_equal_those_of_open_clip(tokenizer: BpeTokenizer, text: str) -> None:
    from open_clip import tokenize

    ids = tokenize(text, context_length=200)[0].tolist()
    assert [tokenizer.sos, *tokenizer.encode(text), tokenizer.eot] == ids[: ids.index(tokenizer.eot) + 1]


def test_the_words_of_the_default_prompt_have_their_published_token_ids(tokenizer: BpeTokenizer) -> None:
    assert tokenizer.encode("A photo  of a") == [320, 1125, 539, 320]
    assert (tokenizer.sos, tokenizer.eot) == (49406, 49407)


def test_tags_read_from_open_clips_source_equal_the_tags_that_it_lists(tags):
    from open_clip import pretrained

    listed = {}
    for name, tag in pretrained.list_pretrained():
        if name not in ARCHITECTURES:
            listed.setdefault(name, []).append(tag)
    read = tags_in_source(Path(pretrained.__file__).read_text(encoding="utf-8"))
    assert read.keys() == listed.keys()
    for name, names_of_tags in read.items():
        assert sorted(names_of_tags) == sorted(listed[name]), name
    assert "openai" in read["ViT-B-16-quickgelu"]
