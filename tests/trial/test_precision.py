"""Every stage of a trial computes in the trial's precision; torch's settings are restored afterwards."""

from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fpp_sweep.core.compute import computing, torch_generator
from fpp_sweep.core.fpp import draw_noise, pretrain
from fpp_sweep.core.methods import TextModel, build_method
from fpp_sweep.core.methods.gradients import ByBackward, ByJacobian
from fpp_sweep.spec.config import FppConfig, TrialConfig, preset
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.tasks import EvalTask
from fpp_sweep.trial.results import TaskFailed
from tests.kit.names import DYNAPROMPT, OTPT, REG_ENT, SAM, TPT, ZERO_SHOT
from tests.kit.texts import twins

CPU = torch.device("cpu")
TINY = preset("tiny").replace({"fpp.steps": 2, "views.count": 4, "adapt.view_fraction": 0.5})
MATRICES = ("mm", "addmm", "bmm", "baddbmm", "convolution", "scaled_dot_product")


def in_double(texts):
    """Return the same texts, computed in float64."""
    return replace(texts, tower=texts.tower.to(torch.float64), sos=texts.sos.double(), nodes=texts.nodes.double())


class ProductTypes(TorchDispatchMode):
    """Record the types of the inputs of matrix products and convolutions."""

    def __init__(self):
        super().__init__()
        self.types = set()

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        if any(name in str(operation) for name in MATRICES):
            self.types |= {factor.dtype for factor in arguments[:2]}  # a third argument may be statistics in float32
        return operation(*arguments, **(named or {}))


def task_of(method=TPT, **settings):
    config = TINY.replace({"method": method, "prompt": "a photo of a", **settings})
    return EvalTask(config=config, dataset="scenes", split="val", seed=0, start=0, stop=4)


@pytest.mark.parametrize(
    ("precision", "kind", "of_pretraining"),
    [
        ("float32", torch.float32, torch.float32),
        ("fp16", torch.float16, torch.float16),
        ("released", torch.float16, torch.float32),
    ],
)
def test_every_stage_computes_its_matrices_in_the_trials_precision(
    make_worker, tmp_path, precision, kind, of_pretraining
):
    worker = make_worker(limit=8, cache=str(tmp_path))
    with computing("fp16", CPU):  # which multiplies once, to ask the device whether it can
        pass
    adapted = task_of(precision=precision, **{"adapt.steps": 2})
    pretrained = task_of(prompt="fpp", precision=precision).pretrain
    detached = task_of(prompt="fpp", precision=precision, **{"fpp.detach": "clean"}).pretrain
    zero_shot = task_of(ZERO_SHOT, precision=precision)
    for task, expected in (
        (adapted, kind),
        (zero_shot, kind),
        (pretrained, of_pretraining),
        (detached, of_pretraining),
    ):
        with torch.autocast("cpu"), ProductTypes() as products:  # a caller's own setting has no effect
            worker.run(task, ())
        assert products.types == {expected}, task.title


def test_results_that_a_precision_does_not_change_are_shared(make_worker, tmp_path):
    worker = make_worker(limit=8, cache=str(tmp_path))
    (dataset,) = worker.datasets.describe(["scenes"], "val")
    keys = TaskKeys(worker.model_info(), {("scenes", "val"): dataset})
    precisions = ("float32", "fp16", "released")
    words = [keys.of(task_of(precision=precision)) for precision in precisions]
    assert words[2] == words[1] != words[0]
    learned = [task_of(prompt="fpp", precision=precision) for precision in precisions]
    pretrainings = [keys.of(task.pretrain) for task in learned]
    assert pretrainings[2] == pretrainings[0] != pretrainings[1]
    assert len({keys.of(task) for task in learned}) == 3  # each differs in the prompt or in the adaptation


@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e3])  # size of gradients; fp16's numbers reach from 6e-8 to 65504
@pytest.mark.parametrize("form", [ByBackward, ByJacobian])
def test_both_forms_of_the_first_gradient_are_near_float64(form, size):
    pair = twins()
    texts, context = pair.texts, pair.context
    gradients = torch.randn(5, len(texts), 16, generator=torch.Generator().manual_seed(0)) * size
    exact = form(in_double(texts), context.double()).backward(gradients.double())
    errors = {}
    for precision in ("float32", "fp16"):
        with computing(precision, CPU), torch.no_grad():
            found = form(texts, context).backward(gradients)
        assert found.dtype == torch.float32
        errors[precision] = ((found - exact).norm() / exact.norm()).item()
    assert errors["float32"] < 1e-5 < errors["fp16"] < 0.02


def test_pretraining_in_half_precision_stays_near_float64():
    pair = twins()
    config = FppConfig(steps=20, start="predefined", lr=1e-3)

    def context(texts, start, precision="float32"):
        noise = draw_noise(texts, len(start), config, torch_generator("noise"))
        with computing(precision, CPU):
            return pretrain(texts, start, config, flatness_weight=2.0, start=start, noise=noise).context

    exact = context(in_double(pair.texts), pair.context.double())
    moved = (exact - pair.context).norm()
    errors = {}
    for precision in ("float32", "fp16"):
        error = context(pair.texts, pair.context, precision) - exact
        errors[precision] = (error.norm() / moved).item()
    assert errors["float32"] < 1e-3 < errors["fp16"] < 0.3


@pytest.mark.parametrize("method", [ZERO_SHOT, TPT, OTPT, SAM[TPT], REG_ENT[OTPT], DYNAPROMPT[TPT]])
def test_predictions_are_near_those_in_float64(method):
    pair = twins()
    views = pair.views(16, 16)

    def probabilities(texts, context, views, precision="float32"):
        model = TextModel(texts=texts, logit_scale=pair.logit_scale)
        chosen = build_method(method, TrialConfig().adapt, "custom")
        with computing(precision, CPU):
            return chosen.predict(model, chosen.start(model, context, len(views)), views)[0].softmax(-1)

    exact = probabilities(in_double(pair.texts), pair.context.double(), views.double())
    single = probabilities(pair.texts, pair.context, views, "float32")
    half = probabilities(pair.texts, pair.context, views, "fp16")
    assert (single - exact).abs().max() < 1e-3
    assert 0 < (half - exact).abs().median() < 0.01
    assert (half.argmax(-1) == exact.argmax(-1)).float().mean() > 0.8  # rounding may change the selected views or slots


def test_probabilities_in_half_precision_are_stored_in_half_precision_as_in_the_released_code(make_worker, tmp_path):
    worker = make_worker(limit=8, cache=str(tmp_path))
    for precision in ("float32", "fp16"):
        confidence = torch.as_tensor(worker.run(task_of(precision=precision), ()).read_predictions().confidence)
        are_half_precision_numbers = torch.equal(confidence.half().double(), confidence.double())
        assert are_half_precision_numbers == (precision == "fp16")


# ------------------------------------------------------------ support by devices, and torch's settings


def torch_settings():
    gpu, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    return gpu.fp32_precision, conv.fp32_precision, torch.is_autocast_enabled("cpu")


@pytest.fixture
def every_precision_supported(monkeypatch):
    """Pretend that every device supports every precision, so that the settings can be checked without a GPU."""
    monkeypatch.setattr("fpp_sweep.core.compute.require_precision_support", lambda *_: None)


@pytest.mark.usefixtures("every_precision_supported")
@pytest.mark.parametrize("outside", [None, "highest", "high"])
def test_a_precision_is_in_force_only_inside_its_context(outside):
    if outside:
        torch.set_float32_matmul_precision(outside)
    before = torch_settings()
    try:
        for precision, inside in {
            "float32": ("ieee", "ieee", False),
            "tf32": ("tf32", "tf32", False),
            "fp16": ("ieee", "ieee", True),
        }.items():
            with suppress(KeyError), computing(precision, CPU):
                assert torch_settings() == inside
                assert torch.backends.cuda.matmul.allow_tf32 is (precision == "tf32")  # torch's older attribute agrees
                with computing("float32", CPU):
                    assert torch_settings() == ("ieee", "ieee", False)
                assert torch_settings() == inside
                raise KeyError
            assert torch_settings() == before
            assert torch.backends.cuda.matmul.allow_tf32 is (outside == "high")
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("version", "device_text"), [(None, "this is a cpu"), ((7, 5), "this one has 7.5"), ((8, 0), None)]
)
def test_tf32_is_refused_on_devices_without_it(monkeypatch, version, device_text):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: version)
    device = torch.device("cpu" if version is None else "cuda")
    line = f"precision tf32: needs a GPU with compute capability 8.0 or later, {device_text}; use float32"
    with pytest.raises(InputError, match=line) if device_text else nullcontext(), computing("tf32", device):
        pass


def test_a_worker_refuses_to_start_if_its_device_lacks_a_precision(make_worker):
    worker = make_worker(precisions=("float32", "tf32"))
    del worker.model.clip
    with pytest.raises(InputError, match="precision tf32: needs a GPU"):
        worker.model_info()
    with pytest.raises(TaskFailed, match="precision tf32: needs a GPU"):
        make_worker(limit=8).run(task_of(precision="tf32"), ())


def test_penalties_alone_stay_in_float32_as_in_the_released_code(make_worker, tmp_path):
    worker = make_worker(limit=8, cache=str(tmp_path))
    for method, kinds in ((OTPT, {torch.float16, torch.float32}), (TPT, {torch.float16})):
        with ProductTypes() as products:
            worker.run(task_of(method, precision="fp16"), ())
        assert products.types == kinds
