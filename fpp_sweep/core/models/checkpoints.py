"""Tensors from untrusted files: no code in them is ever run.

Four formats: safetensors, `torch.save` files (read by torch's weights-only unpickler), open_clip's training
checkpoints, which are such files, and TorchScript archives, as which OpenAI published CLIP. Of an archive, only the
pickle of its attributes is read, with placeholders for its classes, so `torch.jit` is not needed.
"""

from __future__ import annotations

import contextlib
import inspect
import pickle
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fpp_sweep.spec.errors import InputError

# buffers of OpenAI's archives that are settings, not weights; no other state dicts have them
OPENAI_SETTINGS = frozenset({"input_resolution", "context_length", "vocab_size"})

TRANSFORMERS_TOWERS = ("text_model.", "vision_model.")  # beginnings of names in Hugging Face's transformers

STORAGES = {
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ShortStorage": torch.int16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
}


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A model's weights under its own names."""

    state: dict[str, Tensor]
    # an archive, or a state dict with OPENAI_SETTINGS; precision is no sign, since open_clip's fp16 models mix half and
    # single precision in the same way
    is_openai: bool


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a model's checkpoint in any of the four formats; raise InputError for everything else."""
    with _as_input_errors(path):
        if _is_torchscript(path):
            return Checkpoint(_weights(_archive_tensors(path)), is_openai=True)
        content = _content(path)
        state = content.get("state_dict", content)
        if not isinstance(state, Mapping) or not any(isinstance(value, Tensor) for value in state.values()):
            raise InputError("holds no state dict (names and tensors), so it is not a model's checkpoint")
        has_openai_settings = not OPENAI_SETTINGS.isdisjoint(state)
        return Checkpoint(_weights(state), is_openai=has_openai_settings)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return every tensor of a safetensors or `torch.save` file; nested names are joined by dots."""
    with _as_input_errors(path):
        return dict(_flatten(_content(path)))


def _archive_tensors(path: Path) -> dict[str, Tensor]:
    """Return every tensor of a TorchScript archive."""
    with zipfile.ZipFile(path) as archive:
        (pickled,) = [name for name in archive.namelist() if re.fullmatch(r"[^/]+/data\.pkl", name)]
        if _computes_gelu(archive):
            raise InputError(
                "a TorchScript archive that computes with GELU, so none of OpenAI's; give its state dict instead"
            )
        with archive.open(pickled) as file:
            root = _ArchiveUnpickler(file, archive, pickled.removesuffix(".pkl")).load()
    if not isinstance(root, Placeholder):
        raise InputError("a TorchScript archive with no module in it")
    return dict(_flatten(root))


class Placeholder:
    """A replacement for an object of any class, which keeps the saved attributes and does nothing."""

    def __init__(self, *_: object) -> None:
        """Accept any arguments."""

    def __setstate__(self, state: object) -> None:
        self.attributes = state


class _ArchiveUnpickler(pickle.Unpickler):
    """An unpickler of a TorchScript archive's attributes: tensors, plain values, and modules as placeholders."""

    def __init__(self, file: Any, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(file)
        self._archive, self._folder = archive, folder
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "__torch__" or (module, name) == ("torch", "device"):
            return Placeholder
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (module, name) in _ARCHIVE_GLOBALS:
            return partial(_ARCHIVE_GLOBALS[module, name])  # a copy, because a pickle can set attributes of a function
        raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")

    def persistent_load(self, pid: Any) -> Tensor:
        """Return a storage from ("storage", dtype, key, device, length)."""
        _, dtype, key, *_ = pid
        if key not in self._storages:
            content = bytearray(self._archive.read(f"{self._folder}/{key}"))
            if content:
                self._storages[key] = torch.frombuffer(content, dtype=dtype)
            else:
                self._storages[key] = torch.empty(0, dtype=dtype)
        return self._storages[key]


def _rebuild_tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object) -> Tensor:
    """Return a tensor of a storage; torch checks the bounds."""
    return storage.as_strided(size, stride, offset)


def _identity(value: object, *_: object) -> object:
    return value


_ARCHIVE_GLOBALS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    **{("torch.jit._pickle", f"build_{kind}list"): _identity for kind in ("int", "double", "bool", "tensor")},
    ("torch.jit._pickle", "restore_type_tag"): _identity,
}


@contextlib.contextmanager
def _as_input_errors(path: Path) -> Iterator[None]:
    """Turn every error of the block into an InputError of one line that begins with the path."""
    try:
        if not path.exists():
            raise InputError("no such file")
        if not path.is_file():
            raise InputError("not a file; give the checkpoint itself")
        if path.stat().st_size == 0:
            raise InputError("the file is empty")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # on damaged files the parsers raise errors without a common base class
        raise InputError(f"{path}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, InputError):
        return str(error)
    code = re.search(r"GLOBAL ([\w.]+)", str(error))
    if code is not None:
        return f"refused, reading it would run code ({code[1]}); only plain weights are read"
    if isinstance(error, pickle.UnpicklingError):
        return "not a file of plain weights; damaged, or not a PyTorch checkpoint"
    return f"truncated, damaged, or not a checkpoint ({type(error).__name__})"  # its text may quote another file's


def _content(path: Path) -> Mapping[Any, Any]:
    """Return the contents of a safetensors or `torch.save` file."""
    if path.suffix == ".safetensors":
        return load_file(path)
    can_be_mapped = zipfile.is_zipfile(path)  # then an optimizer's state is never read from disk
    with torch.serialization.safe_globals(_PLACEHOLDERS):
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=can_be_mapped)
    if not isinstance(content, Mapping):
        raise InputError(f"holds no names and tensors, but one {type(content).__name__}")
    return content


def _empty(*_: object) -> dict[Any, Any]:
    return {}


Replacement = Callable[..., Any] | tuple[Callable[..., Any], str]


def _replacements() -> list[Replacement]:
    """Return what replaces the classes of optimizers and schedulers, which CoOp's checkpoints hold as objects."""
    replacements: list[Replacement] = [(_empty, "collections.defaultdict"), (_empty, "builtins.dict")]
    for module in (torch.optim, torch.optim.lr_scheduler):
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__.startswith("torch.optim."):
                replacements.append((Placeholder, f"{cls.__module__}.{cls.__qualname__}"))
    return replacements


_PLACEHOLDERS = _replacements()


def _flatten(content: object, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of nested mappings and placeholders, with its name."""
    if isinstance(content, Tensor):
        yield prefix, content
    if isinstance(content, Placeholder):
        content = content.__dict__.get("attributes")
    if not isinstance(content, Mapping):
        return
    for name, value in content.items():
        if isinstance(name, str | int):
            full_name = str(name)
            if prefix:
                full_name = f"{prefix}.{name}"
            yield from _flatten(value, full_name)


def _weights(state: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Return plain tensors under the model's names, without a data-parallel wrapper's prefix and OpenAI's settings."""
    weights = {str(name): value for name, value in state.items() if name not in OPENAI_SETTINGS}
    for name, value in weights.items():
        if not _is_plain(value):
            raise InputError(f"{name!r} in the state dict is not a dense tensor but {_kind(value)}")
    if all(name.startswith("module.") for name in weights):
        weights = {name.removeprefix("module."): value for name, value in weights.items()}
    if any(name.startswith(TRANSFORMERS_TOWERS) for name in weights):
        raise InputError(
            "weights in the layout of Hugging Face's transformers, which is not supported; give the same model's file "
            "of open_clip (open_clip_model.safetensors) or of OpenAI, or published weights by NAME/TAG"
        )
    return weights


def _is_plain(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
    )


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {value.layout} tensor on {value.device}"
    return f"a {type(value).__name__}"


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _computes_gelu(archive: zipfile.ZipFile) -> bool:
    """Return True if the archive's code calls the GELU that OpenAI's models never used."""
    for name in archive.namelist():
        is_code = "/code/" in name and name.endswith(".py")
        if is_code and b"torch.gelu(" in archive.read(name):
            return True
    return False
