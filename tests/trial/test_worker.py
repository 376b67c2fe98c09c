"""What a worker says of its data, what it computes and what it keeps; the results are test_trial.py's."""

import json
import platform
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fpp_sweep.core.compute.memory import Room
from fpp_sweep.core.images.features import view_bytes
from fpp_sweep.core.methods import gradients
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import from_words
from fpp_sweep.spec import tasks as cutting
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.trial import running
from fpp_sweep.trial import worker as module
from fpp_sweep.trial.results import TaskFailed
from fpp_sweep.trial.trial import joined
from fpp_sweep.trial.worker import Worker
from tests.builders import jpeg, write_image
from tests.names import DYNAPROMPT, PLAIN, TPT
from tests.toys import RUNNING_MEAN, registered
from tests.trial.conftest import inline, plan_of
from tests.trial.made import evaluation

LISTING = [["1.jpg", 0, "cat"], ["2.jpg", 1, "dog"], ["3.jpg", 1, "dog"]]
SPLITS = {"train": LISTING, "val": LISTING, "test": [["1.jpg", 0, "cat"], ["2.jpg", 0, "cat"], ["3.jpg", 1, "dog"]]}
FILE = "pets_of_mine: {layout: split_json, images: images, split_file: split.json}"


def dataset_in(folder, splits=SPLITS, file=FILE):
    for name, _, _ in splits["test"]:
        write_image(folder / "images" / name, jpeg((int(name.partition(".")[0]) % 256, 0, 0)))
    (folder / "split.json").write_text(json.dumps(splits))
    (folder / "mine.yaml").write_text(file)
    return str(folder / "mine.yaml")


@pytest.fixture(scope="module")
def mine(make_worker, tmp_path_factory):
    """On a dataset whose splits are the same images, with another label in one of them."""
    return make_worker(dataset_file=dataset_in(tmp_path_factory.mktemp("data")))


def test_data_with_other_labels_are_other_data(mine):
    digests = {split: mine.describe(["pets_of_mine"], split)[0].digest for split in SPLITS}
    assert digests["train"] == digests["val"] != digests["test"]


def test_data_whose_views_are_drawn_otherwise_are_other_data(make_worker, tmp_path):
    digests = set()
    for number, more in enumerate(("", ", flip: false", ", augmix: false")):
        (tmp_path / str(number)).mkdir()
        file = dataset_in(tmp_path / str(number), file=FILE.replace("}", f"{more}}}"))
        digests.add(make_worker(dataset_file=file).describe(["pets_of_mine"], "val")[0].digest)
    assert len(digests) == 3


def test_whatever_moves_last_bits_is_told_of_a_worker(make_worker):
    told = {make_worker(**spec).facts().arithmetic for spec in ({}, {"threads": 2}, {"exact_cache": True})}
    assert len(told) == 3


def test_zero_shot_computes_one_view_of_each_image(mine, monkeypatch):
    computed = []
    image_features = Clip.image_features

    def counted(self, pixels, **how):
        computed.append(len(pixels))
        return image_features(self, pixels, **how)

    monkeypatch.setattr(Clip, "image_features", counted)
    settings = {"views.count": 4, "adapt.view_fraction": 0.5}
    for seed, method in enumerate([PLAIN, TPT]):  # another seed has views of its own
        mine.run(evaluation(dataset="pets_of_mine", split="test", seed=seed, stop=3, method=method, **settings), [])
    one, all_views = computed
    assert all_views == 4 * one


# ------------------------------------------------------------ failures


@pytest.mark.parametrize("error", [RuntimeError("CUDA error:\nout of memory"), KeyError("x")], ids=repr)
def test_what_goes_wrong_is_told_with_samples_machine_and_worker_then_the_cause(mine, monkeypatch, error):
    def broken(*how, **options):
        raise error

    monkeypatch.setattr(module, "evaluate", broken)
    task = evaluation(dataset="pets_of_mine", split="test", stop=3, **{"views.count": 2})
    with pytest.raises(TaskFailed) as failure:
        mine.run(task, [])
    where, _, cause = failure.value.reason.partition(": ")
    assert where == f"pets_of_mine, test samples 0..3, seed 0, {mine.facts().where}"
    assert platform.node() in where
    assert cause == f"{type(error).__name__}: {' '.join(str(error).split())}"
    assert "in broken\n    raise error" in failure.value.details


def test_a_model_that_cannot_be_loaded_is_told_once_and_with_where(monkeypatch):
    loads = []

    def load(name, device):
        loads.append(name)
        raise MemoryError("no room")

    monkeypatch.setattr(module, "load", load)
    with pytest.raises(TaskFailed, match=r"^dtd, pretraining, seed 0, worker \d+ on .*: MemoryError: no room"):
        Worker(WorkerSpec(model="tiny")).run(evaluation(prompt="fpp").pretrain, [])
    assert loads == ["tiny"]


def test_what_image_features_took_is_told_by_whoever_computed_them(make_worker, tmp_path):
    worker, task = make_worker(limit=20, cache=str(tmp_path)), evaluation(dataset="digits", stop=20, method="zero_shot")
    cost = worker.run(task, []).features
    assert cost["images"] == 20
    assert cost["tower"] > 0
    assert worker.run(task, []).features == {}


@pytest.mark.parametrize(
    ("model", "device", "share", "asked", "loaders"),
    [
        ("ViT-B-16", "cuda", 1.0, None, 4),
        ("ViT-B-16", "cuda", 0.25, None, 3),
        ("ViT-B-16", "cuda", 0.05, None, 1),
        ("ViT-B-16", "cuda", 1.0, 0, 0),
        ("ViT-B-16", "cpu", 1.0, None, 0),
        ("tiny", "cuda", 1.0, None, 0),
    ],
)
def test_a_gpu_is_given_processes_that_read_for_it(model, device, share, asked, loaders, monkeypatch):
    monkeypatch.setattr("fpp_sweep.spec.process.cores", lambda: 16)
    worker = Worker(WorkerSpec(model=model, share=share, loaders=asked))
    worker.__dict__["clip"] = SimpleNamespace(name=model, device=torch.device(device))
    assert worker._loaders == loaders


class Greedy(torch.nn.Module):
    """An image tower that asks for more than any machine has, as soon as it is given so many images."""

    def __init__(self, tower, most):
        super().__init__()
        self.tower, self.most = tower, most

    def forward(self, pixels):
        torch.empty((1 << 50) if len(pixels) > self.most else 1)
        return self.tower(pixels)


@pytest.mark.parametrize("most", [3, 0])
def test_a_device_too_small_for_all_halves_and_one_too_small_for_one_view_is_a_line(make_worker, tmp_path, most):
    worker = make_worker(limit=8, cache=str(tmp_path))
    worker.__dict__["clip"] = replace(worker.clip, visual=Greedy(worker.clip.visual, most))
    task = evaluation(dataset="digits", stop=8, **{"views.count": 2})
    if most:
        assert len(worker.run(task, []).predictions) == 8
        return
    told = r"digits, val samples 0\.\.8.*: MemoryError: needs 4194304.0 GiB, [0-9.]+ GiB are free on cpu; give it"
    with pytest.raises(TaskFailed, match=told) as failure:
        worker.run(task, [])
    assert failure.value.elsewhere
    assert "\n" not in failure.value.reason


def test_views_go_through_the_tower_as_room_allows(make_worker, tmp_path):
    worker = make_worker(limit=8, cache=str(tmp_path))
    each = view_bytes(worker.clip)
    assert each > 0
    room = Room(device=4 * 3 * each)  # for three of them in a quarter
    clip = replace(worker.clip, visual=Greedy(worker.clip.visual, 3), text=replace(worker.clip.text, room=room))
    worker.__dict__["clip"] = clip
    predictions = worker.run(evaluation(dataset="digits", stop=8, **{"views.count": 2}), []).predictions
    expected = make_worker(limit=8, cache=str(tmp_path / "whole")).run(
        evaluation(dataset="digits", stop=8, **{"views.count": 2}), []
    )
    assert abs(predictions.confidence - expected.predictions.confidence).max() < 1e-5


def test_results_that_a_task_needs_must_be_given(mine):
    task = evaluation(dataset="pets_of_mine", split="test", stop=3, prompt="fpp", **{"views.count": 2})
    with pytest.raises(TaskFailed, match=r"pets_of_mine, test samples 0\.\.3.*: ValueError: zip\(\)"):
        mine.run(task, [])


# ------------------------------------------------------------ adapters


@pytest.fixture
def built(monkeypatch):
    """The configs of adapters that are built, and what each is said to take."""
    made, make_adapter = [], module.make_adapter

    def counted(clip, config, dataset, prompt):
        made.append(config)
        return make_adapter(clip, config, dataset, prompt)

    monkeypatch.setattr(module, "make_adapter", counted)
    monkeypatch.setattr(module.Adapter, "size", property(lambda adapter: 100))
    return made


def trials(count):
    """So many trials, each with shards of two batches."""
    configs = [{"adapt.lr": 0.001 * (1 + number), "views.count": 2} for number in range(count)]
    return [evaluation(dataset="digits", stop=128, **config).shards(2) for config in configs]


def run_all(worker, tasks):
    keys = TaskKeys(worker.facts(), plan_of(worker).known())
    for task in tasks:
        held = worker.run(task, [], keys.of_adapter(task)).adapters
    return held


@pytest.mark.parametrize(("room", "times"), [(299, 1), (1e9, 1), (199, 2), (0, 2)])
def test_trials_that_alternate_build_each_adapter_once_if_there_is_room(make_worker, monkeypatch, built, room, times):
    """With room for two beside the one in use, three stay; with less, the one that was used longest ago goes first."""
    three = trials(3)
    worker = make_worker(limit=128)
    monkeypatch.setattr(module, "ADAPTERS", room / worker.clip.text.room.device)
    held = run_all(worker, [shards[turn] for turn in range(2) for shards in three])
    assert built == [shards[0].config for shards in three] * times
    assert len(held) == {299: 3, 1e9: 3, 199: 2, 0: 1}[room]


def test_the_adapter_that_was_used_longest_ago_goes_first(make_worker, monkeypatch, built):
    one, two, three = trials(3)
    worker = make_worker(limit=128)
    monkeypatch.setattr(module, "ADAPTERS", 199 / worker.clip.text.room.device)
    run_all(worker, [one[0], two[0], one[1], three[0]])  # the third goes in where the second was
    del built[:]
    run_all(worker, [one[0], three[1]])
    assert not built
    run_all(worker, [two[1]])
    assert built == [two[1].config]


@pytest.mark.parametrize("jacobian", [False, True])
def test_an_adapter_takes_what_its_state_holds_beside_the_model(small, monkeypatch, jacobian):
    monkeypatch.setattr(gradients, "jacobian_pays", lambda *how: jacobian)
    task = evaluation(dataset="digits", stop=20)
    state = (adapter := small.adapter(task, from_words(small.clip, task.config.prompt))).state
    plain = state.context.nbytes + state.first.features.nbytes
    if jacobian:
        assert adapter.size == plain + state.first._jacobian.nbytes
    else:  # the pullback holds the tower, too, which is not counted
        weights = sum(tensor.nbytes for tensor in running._tensors(small.clip.text, set()))
        assert plain < adapter.size < weights


# ------------------------------------------------------------ streams with holes


STREAMS: list[tuple[str, dict[str, object]]] = [("running_mean", {})] + [
    (DYNAPROMPT[TPT], {"views.count": 4, "adapt.slots": 2, "adapt.order": order}) for order in ("file", "shuffled")
]


@pytest.mark.parametrize(("method", "more"), STREAMS, ids=["a mean", "in file order", "shuffled"])
@pytest.mark.parametrize("lost", [range(64), range(64, 128), range(70)], ids=["the first", "the second", "and a half"])
def test_a_stateful_stream_goes_on_over_shards_of_which_nothing_can_be_read(
    make_worker, tmp_path, monkeypatch, lost, method, more
):
    monkeypatch.setattr(cutting, "SHARD", 64)
    test = [[f"{number}.jpg", number % 2, ("cat", "dog")[number % 2]] for number in range(150)]
    worker = make_worker(
        dataset_file=dataset_in(tmp_path, {"train": test, "val": test, "test": test}), on_bad_image="skip"
    )
    streams = {"dataset": "pets_of_mine", "split": "test", "stop": 150, "method": method, **more}
    with registered(RUNNING_MEAN):
        dataset = worker.dataset("pets_of_mine", "test")
        order = running.positions(evaluation(**streams), dataset)
    for position in order[lost]:
        (tmp_path / "images" / dataset.ids[position]).write_text("no image")
    plan = plan_of(worker, datasets=("pets_of_mine",), splits=("test",))
    with registered(RUNNING_MEAN):
        shards = evaluation(**streams).shards()
        results = list(inline(worker, plan, tmp_path / "cut").results(shards))
        found = joined(results, 150)
        monkeypatch.setattr(cutting, "SHARD", 1024)
        (whole,) = evaluation(**streams).shards()
        expected = joined(list(inline(worker, plan, tmp_path / "whole").results([whole])), 150)
    assert len(shards) == 3
    assert len(found) == 150 - len(lost)
    assert (found.confidence == expected.confidence).all()
    assert found.ids == tuple(dataset.ids[position] for position in order if position not in set(order[lost]))
    skipped = {shard.start: [sample.sample_id for sample in result.skipped] for shard, result in results}
    for shard in shards:
        own = [dataset.ids[order[index]] for index in range(shard.start, shard.stop) if index in lost]
        assert sorted(skipped[shard.start]) == sorted(own)
