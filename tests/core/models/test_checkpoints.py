"""Checkpoint files: all formats are read, and no code in a file is run."""

from __future__ import annotations

import io
import os
import pickle
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from fpp_sweep.core.models import checkpoints
from fpp_sweep.core.models.checkpoints import read_checkpoint, read_tensors
from fpp_sweep.spec.errors import InputError
from tests.kit.models import OPENAI_SETTINGS, half_precision_clip, save_openai_archive, small_clip


class Touch:
    """An object that creates a folder when it is unpickled by a reader that runs code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


class Unusual(nn.Module):
    """A module with attributes of all kinds that a TorchScript archive stores in different formats."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding="same").half()
        self.norm = nn.BatchNorm2d(4)
        shared = torch.arange(6.0).view(2, 3)
        self.register_buffer("shared", shared)
        self.register_buffer("shared_transposed", shared.t()[1:])
        self.register_buffer("empty", torch.empty(0, 3))
        self.flags = {"a": 1}
        self.pair = (1, 2.0)
        self.device = torch.device("cpu")
        self.words = "text"

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.norm(x) * len(self.flags) + self.pair[0] + len(self.words)
        return scaled + self.conv.weight.sum()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    path = tmp_path_factory.mktemp("archive") / "openai.pt"
    return path, save_openai_archive(path)


def read_torchscript(path):
    """Return the tensors of an archive, including OpenAI's settings."""
    with checkpoints._as_input_errors(path):
        return checkpoints._archive_tensors(path)


def assert_same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.dtype == right[name].dtype, name
        assert torch.equal(value, right[name]), name


def message(path: Path, read: Callable[[Path], object] = read_checkpoint) -> str:
    """Return the line with which a file is refused, without the path at its beginning."""
    with pytest.raises(InputError) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


def test_an_archive_gives_the_tensors_that_torch_reads(archive: tuple[Path, dict[str, Tensor]]) -> None:
    path, expected = archive
    assert {value.dtype for value in expected.values()} == {torch.float16, torch.float32, torch.int64}
    assert_same(read_torchscript(path), expected)


def test_an_archive_is_recognised_as_openais_and_read_without_its_settings(
    archive: tuple[Path, dict[str, Tensor]],
) -> None:
    path, expected = archive
    checkpoint = read_checkpoint(path)
    assert checkpoint.is_openai
    assert_same(checkpoint.state, {name: value for name, value in expected.items() if name not in OPENAI_SETTINGS})


def test_a_scripted_archive_with_unusual_attributes_gives_the_tensors_that_torch_reads(tmp_path: Path) -> None:
    path = tmp_path / "scripted.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Unusual()), path)
        assert_same(read_torchscript(path), torch.jit.load(path).state_dict())  # type: ignore[no-untyped-call]


def test_an_archive_is_read_without_torchs_loaders(
    archive: tuple[Path, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("torch's loader was called")

    monkeypatch.setattr(torch.jit, "load", forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    read_torchscript(archive[0])


def test_an_archive_that_computes_with_gelu_is_refused(tmp_path: Path) -> None:
    save_openai_archive(tmp_path / "gelu.pt", quick_gelu=False)
    assert "computes with GELU" in message(tmp_path / "gelu.pt")


def archive_of(path: Path, pickled: bytes, **records: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", pickled)
        file.writestr("x/constants.pkl", b"")
        for name, content in records.items():
            file.writestr(f"x/data/{name}", content)
    return path


def test_an_archive_with_code_in_its_pickle_is_refused_and_the_code_not_run(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "evil.pt", pickle.dumps(Touch(tmp_path / "touched"), protocol=2))
    assert "refused" in message(path)
    assert "posix.mkdir" in message(path)
    assert not (tmp_path / "touched").exists()


# Pickles that set an attribute: the first of a function, the second of the class that stands for modules. The opcode
# `c` pushes the object of a module and a name.
REWRITE_FUNCTION = b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\n(N}(X\x0c\x00\x00\x00__defaults__(K\x01tutb."
REWRITE_CLASS = b"\x80\x02c__torch__\nM\n(N}(X\x04\x00\x00\x00nameX\x01\x00\x00\x00xutb."


@pytest.mark.parametrize("pickled", [REWRITE_FUNCTION, REWRITE_CLASS])
def test_an_archive_cannot_change_the_packages_functions_and_classes(tmp_path: Path, pickled: bytes) -> None:
    attributes, defaults = dict(vars(checkpoints.Placeholder)), checkpoints._identity.__defaults__
    message(archive_of(tmp_path / "evil.pt", pickled), read_torchscript)
    assert dict(vars(checkpoints.Placeholder)) == attributes
    assert checkpoints._identity.__defaults__ == defaults


def test_a_tensor_larger_than_its_storage_is_refused(tmp_path: Path) -> None:
    # a pickle of a tensor "w" in a storage of two numbers; %c stands for the tensor's size
    rebuild = (
        b"\x80\x02c__torch__\nM\n)\x81}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n"
        b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ"
        b"K\x00K%c\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtRsb."
    )
    good = archive_of(tmp_path / "good.pt", rebuild.replace(b"%c", b"\x02"), **{"0": bytes(8)})
    assert_same(read_torchscript(good), {"w": torch.zeros(2)})
    bad = archive_of(tmp_path / "bad.pt", rebuild.replace(b"%c", b"\x03"), **{"0": bytes(8)})
    assert "damaged" in message(bad, read_torchscript)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_pickle_with_code_is_refused_and_the_code_not_run(tmp_path: Path, protocol: int, wrapped: bool) -> None:
    path, touched = tmp_path / "evil.pt", tmp_path / "touched"
    content = {"state_dict": {"weight": torch.ones(2), "evil": Touch(touched)}}
    if wrapped:
        torch.save(content, path, pickle_protocol=protocol)
    else:
        path.write_bytes(pickle.dumps(content, protocol=protocol))
    message(path)
    message(path, read_tensors)
    assert not touched.exists()
    if wrapped:
        torch.load(path, weights_only=False)
    else:
        pickle.loads(path.read_bytes())
    assert touched.exists()  # a reader that runs code does make the folder


def test_a_refusal_names_the_code_that_would_run(tmp_path: Path) -> None:
    torch.save({"state_dict": {"weight": torch.ones(2)}, "args": Namespace(lr=1)}, tmp_path / "args.pt")
    assert message(tmp_path / "args.pt") == (
        "refused, reading it would run code (argparse.Namespace); only plain weights are read"
    )


def test_a_state_dict_with_openais_settings_is_openais(tmp_path: Path) -> None:
    state = small_clip().state_dict()
    torch.save({**state, **{name: torch.tensor(value) for name, value in OPENAI_SETTINGS.items()}}, tmp_path / "a.pt")
    torch.save({**state, **OPENAI_SETTINGS}, tmp_path / "b.pt")
    for path in (tmp_path / "a.pt", tmp_path / "b.pt"):
        checkpoint = read_checkpoint(path)
        assert checkpoint.is_openai
        assert_same(checkpoint.state, state)


def test_a_state_dict_without_openais_settings_is_not_taken_for_openais_by_its_precision(tmp_path: Path) -> None:
    stored = half_precision_clip().state_dict()
    states = {
        "mixed": stored,
        "single": {name: value.float() for name, value in stored.items()},
        "half": {name: value.half() for name, value in stored.items()},
    }
    for name, state in states.items():
        torch.save(state, tmp_path / f"{name}.pt")
        save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / f"{name}.safetensors")
        for kind in ("pt", "safetensors"):
            checkpoint = read_checkpoint(tmp_path / f"{name}.{kind}")
            assert not checkpoint.is_openai
            assert_same(checkpoint.state, state)


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("zipped", [True, False])
def test_open_clips_training_checkpoint_gives_the_weights_of_its_model(
    tmp_path: Path, prefix: str, zipped: bool
) -> None:
    state = half_precision_clip().state_dict()  # open_clip trains in fp16 with the types of OpenAI's weights
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))]).state_dict()
    trained = {"epoch": 32, "name": "run", "optimizer": optimizer}
    trained["state_dict"] = {f"{prefix}{name}": value for name, value in state.items()}
    torch.save(trained, tmp_path / "epoch_32.pt", _use_new_zipfile_serialization=zipped)
    checkpoint = read_checkpoint(tmp_path / "epoch_32.pt")
    assert not checkpoint.is_openai
    assert_same(checkpoint.state, state)


def test_a_prefix_of_only_some_names_is_kept(tmp_path: Path) -> None:
    state = {"module.weight": torch.ones(2), "weight": torch.zeros(2)}
    torch.save(state, tmp_path / "mixed.pt")
    checkpoint = read_checkpoint(tmp_path / "mixed.pt")
    assert_same(checkpoint.state, state)


def test_a_checkpoint_that_holds_a_scheduler_and_its_optimizer_gives_its_tensors(tmp_path: Path) -> None:
    """In CoOp's checkpoints, the state of a warm-up scheduler holds the next scheduler, which holds the optimizer."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.grad = torch.ones(2)
    optimizer.step()
    follower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    context = torch.randn(4, 8)
    content = {"state_dict": {"ctx": context}, "epoch": 50, "scheduler": {"successor": follower, "last_epoch": 1}}
    torch.save(content, tmp_path / "model.pth.tar-50")
    assert_same(read_tensors(tmp_path / "model.pth.tar-50"), {"state_dict.ctx": context})


def test_nested_tensors_are_named_by_their_path(tmp_path: Path) -> None:
    torch.save({"a": {0: {"b": torch.ones(1)}}, "c": torch.zeros(2), "d": 3}, tmp_path / "nested.pt")
    assert_same(read_tensors(tmp_path / "nested.pt"), {"a.0.b": torch.ones(1), "c": torch.zeros(2)})


def saved(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


WEIGHTS = {"weight": torch.arange(1000.0)}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("empty.pt", b"", "empty"),
        ("empty.safetensors", b"", "empty"),
        ("text.pt", b"hello, this is no checkpoint\n", "not a checkpoint"),
        ("random.pt", bytes(range(97, 250)), "not a"),
        ("number.pt", saved(3), "one int"),
        ("list.pt", saved([torch.ones(2)]), "one list"),
        ("names.pt", saved({"a": 1}), "no state dict"),
        ("meta.pt", saved({"a": torch.ones(2), "b": torch.ones(2, device="meta")}), "'b' in the state dict"),
        ("mixed.pt", saved({"a": torch.ones(2), "b": "text"}), "'b' in the state dict is not a dense tensor"),
        ("broken.safetensors", b"\xff" * 64, "damaged"),
        ("text.safetensors", b"hello, this is no checkpoint\n", "damaged"),
        ("torch.safetensors", saved(WEIGHTS), "damaged"),
    ],
)
def test_a_file_that_is_not_a_checkpoint_is_refused_with_one_line(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert expected in message(path).lower()


def test_a_missing_file_and_a_folder_are_distinguished(tmp_path: Path) -> None:
    assert message(tmp_path / "absent.pt") == "no such file"
    assert message(tmp_path) == "not a file; give the checkpoint itself"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the bytes of one small valid file of each format."""
    folder = tmp_path_factory.mktemp("whole")
    torch.save(WEIGHTS, folder / "zip.pt")
    torch.save(WEIGHTS, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    save_file(WEIGHTS, folder / "x.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(nn.Linear(20, 20)), folder / "script.pt")
    for path in folder.iterdir():
        read_checkpoint(path)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused_with_one_line(
    whole: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(whole)))
    length = data.draw(st.integers(0, len(whole[name]) - 1))
    path = tmp_path_factory.mktemp("cut") / name
    path.write_bytes(whole[name][:length])
    message(path)
