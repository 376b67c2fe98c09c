"""Command that writes tests/fuzz/corpus with the project's own writers: `python -m tests.fuzz.make_corpus`."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from benchmarks.fuzz import CORPUS, KEY, TARGETS, TRIAL, model
from fpp_sweep.core.images.chunks import Chunk, Skipped
from fpp_sweep.core.prompt import from_words, prompt_bytes
from fpp_sweep.reproduce.experiment_files import find, shipped
from fpp_sweep.spec import keys
from fpp_sweep.trial.results import TaskResult, pack_predictions
from fpp_sweep.trial.store import TaskStore
from tests.kit.processes import ROOT
from tests.kit.records import build_sweep
from tests.kit.tasks import predictions

CONFIG = "config:\n  method: tpt\n  fpp.gamma2: 0.15\n  fpp.class_var: x0.5\n  views.augmix: off\n"
MINE = """\
zoo: {layout: folders, images: zoo, classes: {n01: tench, n02: "great white shark"}, splits: {test: a, val: b}}
birds:
  layout: split_json
  images: birds
  split_file: birds.json
  classes: [cat, dog]
  augmix: false
"""
SPLIT = {part: [["cat/1.jpg", 0, "cat"], ["dog/a b.jpg", 1, "dog_house"]] for part in ("train", "val", "test")}


class Touch:
    """An object whose pickle makes a folder when it is loaded: the proof that a reader ran code of a file."""

    def __reduce__(self):
        return os.mkdir, ("/tmp/fpp_sweep-fuzz-was-here",)


def write_file(target: str, name: str, data: bytes | str) -> Path:
    path = CORPUS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def write_torch_file(target: str, name: str, content: object, *, zipped: bool = True) -> None:
    torch.save(content, write_file(target, name, ""), _use_new_zipfile_serialization=zipped)


def write_texts() -> None:
    for name in ("smoke", "perturb"):
        write_file("space", f"{name}.yaml", (ROOT / f"search_spaces/{name}.yaml").read_text())
    write_file("space", "grid.yaml", "grid: [{fpp.gamma1: [1, 2], 'fpp.gamma2, fpp.steps': [[1, 2], [3, 4]]}]\n")
    write_file("config", "knee.yaml", CONFIG)
    write_file("datasets", "mine.yaml", MINE)
    write_file("split", "split.json", json.dumps(SPLIT))
    write_file("variants", "variants.txt", "707-320\nF/A-18\nBoeing 717\n")
    write_file("aircraft", "images.txt", "0034309 707-320\n0034958 F/A-18\n")
    for name in shipped()[:2]:
        write_file(
            "experiment", f"{name}.json", json.dumps({"experiment": find(name).root.plain(), "files": {}, "ran": []})
        )


def write_tensors() -> None:
    state = {"visual.w": torch.zeros(2, 3), "ln_final.weight": torch.ones(2).half(), "logit_scale": torch.tensor(4.6)}
    width = model().text.width
    ctx = {"state_dict": {"ctx": torch.zeros(2, width), "token_prefix": torch.zeros(1, 1, 4)}, "epoch": 1}
    write_torch_file("checkpoint", "state.pt", {"state_dict": state, "epoch": 1, "name": "a"})
    write_torch_file("checkpoint", "plain.pt", state, zipped=False)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    write_torch_file(
        "checkpoint", "scheduler.pt", {**state, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}
    )
    write_torch_file("coop", "model.pth", ctx)
    write_torch_file("coop", "old.pth", ctx, zipped=False)
    learner = {"prompt_learner.ctx": torch.zeros(2, width), "prompt_learner.proj.weight": torch.zeros(3, width)}
    learner |= {"prompt_learner.proj.bias": torch.zeros(3), "prompt_learner.token_prefix": torch.zeros(1, 1, 4)}
    write_torch_file("coop", "maple.pth", {"state_dict": learner, "epoch": 1})
    for protocol in (2, 4):
        write_file("checkpoint", f"code-{protocol}.pt", pickle.dumps(Touch(), protocol))
    with zipfile.ZipFile(write_file("checkpoint", "archive.pt", ""), "w") as archive:
        archive.writestr("x/constants.pkl", b"")
        archive.writestr("x/data.pkl", pickle.dumps(Touch(), 2))
    # a pickle of a traced model with one tensor "w" of two numbers
    weights = (
        b"\x80\x02c__torch__\nM\n)\x81}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n"
        b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ"
        b"K\x00K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtRsb."
    )
    with zipfile.ZipFile(write_file("checkpoint", "script.pt", ""), "w") as archive:
        for name, content in (("constants.pkl", b""), ("data.pkl", weights), ("data/0", bytes(8))):
            archive.writestr(f"x/{name}", content)
    write_file("safetensors", "state.safetensors", save(state))
    write_file("prompt", "words.safetensors", prompt_bytes(from_words(model(), "a photo"), model(), {"seed": 0}))
    zeros: dict[str, Any] = {"digests": np.zeros((2, 16), np.uint8), "features": np.zeros((2, 1, 4), np.float16)}
    skipped = (Skipped(sample_id="a.jpg", reason="not an image"),)
    write_file(
        "chunk", "chunk.safetensors", Chunk(**zeros, readable=np.array([True, False]), skipped=skipped).to_bytes()
    )
    huge = b'{"w":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    write_file("safetensors", "bomb.safetensors", len(huge).to_bytes(8, "little") + huge)


def write_records(folder: Path) -> None:
    write_file(
        "manifest",
        "manifest.json",
        json.dumps({"format": keys.FEATURES, "model": "tiny", "dataset": "dtd", "count": 8}),
    )
    store = TaskStore(folder)
    skipped = (Skipped(sample_id="a", reason="b"),)
    store.put(KEY, TaskResult(predictions=pack_predictions(predictions(3)), skipped=skipped, device="cpu"))
    (task,) = folder.rglob("*.task")
    for target in ("task", "sealed"):
        write_file(target, "result.task", task.read_bytes())
    sweep = build_sweep(folder / "sweep", trials=2, failed_trials=(1,))
    write_file("sweep", "sweep.json", sweep.info_file.read_bytes())
    for name in ("trial-0000", "trial-0001"):
        record = sweep.trial_file(name).read_text()
        write_file("trial", f"{name}.json", record.replace(f'"name": "{name}"', f'"name": "{TRIAL}"'))
    runs = {"sweep": {"run_id": "a" * 32, "digest": "b" * 64, "files": {"report/front.csv": [3, 4]}}}
    write_file("reproduction", "reproduction.json", json.dumps({"name": "tiny", "created": 1_800_000_000.5}))
    write_file("front", "front.json", (sweep.report / "front.json").read_bytes())
    write_file("mlflow_sync", "mlflow_sync.json", json.dumps({"experiment": "1", "runs": runs}))


def main() -> None:
    import tempfile

    write_texts()
    write_tensors()
    with tempfile.TemporaryDirectory() as folder:
        write_records(Path(folder))
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


if __name__ == "__main__":
    main()
