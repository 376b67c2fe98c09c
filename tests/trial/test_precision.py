"""Every stage of a trial computes in the trial's precision, and nothing of it is left behind."""

import re
import subprocess
import sys
import textwrap
from contextlib import nullcontext, suppress

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fpp_sweep.core.compute.precision import _lacks_half, computing
from fpp_sweep.core.compute.random_streams import torch_generator
from fpp_sweep.core.fpp import draw_noise, pretrain
from fpp_sweep.core.images.features import view_bytes
from fpp_sweep.core.methods import TextModel, build_method
from fpp_sweep.core.methods.gradients import ByJacobian, ByPullback
from fpp_sweep.core.methods.tpt import Tpt
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.reproduce.theory.flatness import in_double
from fpp_sweep.spec.config import FppConfig, TrialConfig, preset
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.tasks import EvalTask
from fpp_sweep.trial.results import TaskFailed
from tests.names import DYNAPROMPT, OTPT, PLAIN, REG_ENT, SAM, TPT
from tests.texts import twins

CPU = torch.device("cpu")
TINY = preset("tiny").replace({"fpp.steps": 2, "views.count": 4, "adapt.view_fraction": 0.5})
MATRICES = ("mm", "addmm", "bmm", "baddbmm", "convolution", "scaled_dot_product")


class Products(TorchDispatchMode):
    """What matrix products and convolutions are given, by type."""

    def __init__(self):
        super().__init__()
        self.types = set()

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        if any(name in str(operation) for name in MATRICES):
            self.types |= {one.dtype for one in arguments[:2]}  # a third may be statistics, which float32 keeps
        return operation(*arguments, **(named or {}))


def task_of(method=TPT, **settings):
    config = TINY.replace({"method": method, "prompt": "a photo of a", **settings})
    return EvalTask(config=config, dataset="scenes", split="val", seed=0, start=0, stop=4)


@pytest.fixture
def stages(monkeypatch):
    """Types by stage of a trial's real work: the functions that are the stages, watched where they are called."""
    seen = {}

    def watched(owner, name, stage):
        work = getattr(owner, name)

        def run(*arguments, **named):
            with Products() as products:
                result = work(*arguments, **named)
            seen.setdefault(stage, set()).update(products.types)
            return result

        monkeypatch.setattr(owner, name, run)

    watched(Clip, "image_features", "image tower")
    watched(Tpt, "selected", "selection")
    watched(Tpt, "entropy_gradient", "adaptation")
    watched(Tpt, "gradient", "later steps")
    watched(Tpt, "classified", "prediction")
    watched(Tpt, "first", "first gradient")
    return seen


@pytest.mark.parametrize(("precision", "kind"), [("float32", torch.float32), ("fp16", torch.float16)])
def test_every_stage_computes_its_matrices_in_the_trials_precision(make_worker, tmp_path, stages, precision, kind):
    worker = make_worker(limit=8, cache=str(tmp_path))
    with torch.autocast("cpu"):  # whatever the caller has set
        worker.run(task_of(precision=precision, **{"adapt.steps": 2}), ())
    parts = ("image tower", "selection", "adaptation", "later steps", "prediction", "first gradient")
    assert stages == {part: {kind} for part in parts}
    for work in (task_of(prompt="fpp", precision=precision).pretrain, task_of(PLAIN, precision=precision)):
        with Products() as products:
            worker.run(work, ())
        assert products.types == {kind}, work.title
    detached = task_of(prompt="fpp", precision=precision, **{"fpp.detach": "clean"}).pretrain
    with Products() as products:
        worker.run(detached, ())
    assert products.types == {kind}


def test_penalties_alone_stay_in_float32_as_in_the_released_code(make_worker, tmp_path):
    worker = make_worker(limit=8, cache=str(tmp_path))
    view_bytes(worker.clip)  # measured once, with the model as it is
    for method, kinds in ((OTPT, {torch.float16, torch.float32}), (TPT, {torch.float16})):
        with Products() as products:
            worker.run(task_of(method, precision="fp16"), ())
        assert products.types == kinds


@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e3])  # of sure samples; half precision ends at 6e-8 and 65504
@pytest.mark.parametrize("form", [ByPullback, ByJacobian])
def test_both_forms_of_the_first_gradient_are_near_float64_in_half_precision_and_nearer_in_float32(form, size):
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
    errors = {
        precision: ((context(pair.texts, pair.context, precision) - exact).norm() / moved).item()
        for precision in ("float32", "fp16")
    }
    assert errors["float32"] < 1e-3 < errors["fp16"] < 0.3


@pytest.mark.parametrize("method", [PLAIN, TPT, OTPT, SAM[TPT], REG_ENT[OTPT], DYNAPROMPT[TPT]])
def test_predictions_are_near_those_in_float64(method):
    pair = twins()
    views = pair.views(16, 16)

    def probabilities(texts, context, views, precision="float32"):
        model = TextModel(texts=texts, logit_scale=pair.logit_scale)
        chosen = build_method(method, TrialConfig().adapt, "custom")
        with computing(precision, CPU):
            return chosen.predict(model, chosen.start(model, context, len(views)), views)[0].softmax(-1)

    exact = probabilities(in_double(pair.texts), pair.context.double(), views.double())
    single, half = (probabilities(pair.texts, pair.context, views, each) for each in ("float32", "fp16"))
    assert (single - exact).abs().max() < 1e-3
    assert 0 < (half - exact).abs().median() < 0.01
    assert (half.argmax(-1) == exact.argmax(-1)).float().mean() > 0.8  # a choice of views or slots may turn


def test_probabilities_in_half_precision_are_what_the_released_code_stores(make_worker, tmp_path):
    worker = make_worker(limit=8, cache=str(tmp_path))
    found = {each: worker.run(task_of(precision=each), ()).predictions.confidence for each in ("float32", "fp16")}
    rounded = {each: torch.as_tensor(values).half().double() for each, values in found.items()}
    assert torch.equal(rounded["fp16"], torch.as_tensor(found["fp16"]).double())
    assert not torch.equal(rounded["float32"], torch.as_tensor(found["float32"]).double())


# ------------------------------------------------------------ what a device can do, and what is set while it does


def flags():
    gpu, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    return gpu.fp32_precision, conv.fp32_precision, torch.is_autocast_enabled("cpu")


@pytest.fixture
def able(monkeypatch):
    """As if every device could do everything: what is set can be seen without a GPU."""
    monkeypatch.setattr("fpp_sweep.core.compute.precision.require_able", lambda *asked: None)


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("outside", [None, "highest", "high"])
def test_what_is_set_is_in_force_inside_alone(outside):
    if outside:
        torch.set_float32_matmul_precision(outside)
    before = flags()
    try:
        for precision, inside in {
            "float32": ("ieee", "ieee", False),
            "tf32": ("tf32", "tf32", False),
            "fp16": ("ieee", "ieee", True),
        }.items():
            with suppress(KeyError), computing(precision, CPU):
                assert flags() == inside
                assert torch.backends.cuda.matmul.allow_tf32 is (precision == "tf32")  # the older answer is the same
                with computing("float32", CPU):
                    assert flags() == ("ieee", "ieee", False)
                assert flags() == inside
                raise KeyError
            assert flags() == before
            assert torch.backends.cuda.matmul.allow_tf32 is (outside == "high")
    finally:
        torch.set_float32_matmul_precision("highest")


def test_torchs_advice_on_what_is_set_on_purpose_is_not_for_our_users():
    code = """
        import warnings
        import fpp_sweep.core.compute.precision
        warnings.warn("Please use the new API settings to control TF32 behavior, such as torch.backends.cudnn")
        warnings.warn("TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled.")
        warnings.warn("another")
    """
    line = [sys.executable, "-c", textwrap.dedent(code)]
    told = subprocess.run(line, capture_output=True, text=True, check=True).stderr
    assert [line for line in told.splitlines() if "Warning" in line] == ["<string>:6: UserWarning: another"]


@pytest.mark.parametrize(("version", "told"), [(None, "this is a cpu"), ((7, 5), "this one has 7.5"), ((8, 0), None)])
def test_tf32_is_refused_where_there_is_none(monkeypatch, version, told):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: version)
    device = torch.device("cpu" if version is None else "cuda")
    line = f"precision tf32: needs a GPU with compute capability 8.0 or later, {told}; use float32"
    with pytest.raises(InputError, match=line) if told else nullcontext(), computing("tf32", device):
        pass


def test_half_precision_is_refused_where_a_device_has_no_such_product(monkeypatch):
    """As on CPUs of torch before 2.4."""
    missing = RuntimeError("\"slow_conv2d_cpu\" not implemented for 'Half'\nmore")
    monkeypatch.setattr("torch.nn.functional.conv2d", lambda *given: raise_(missing))
    _lacks_half.cache_clear()
    line = "precision fp16: cpu cannot compute in it (\"slow_conv2d_cpu\" not implemented for 'Half'); use float32"
    try:
        with pytest.raises(InputError, match=f"^{re.escape(line)}$"), computing("fp16", CPU):
            pass
    finally:
        _lacks_half.cache_clear()


def raise_(error):
    raise error


def test_a_worker_that_cannot_do_what_will_be_asked_does_not_begin(make_worker):
    worker = make_worker(precisions=("float32", "tf32"))
    worker.__dict__.pop("clip")
    with pytest.raises(InputError, match="precision tf32: needs a GPU"):
        worker.facts()
    with pytest.raises(TaskFailed, match="precision tf32: needs a GPU"):
        make_worker(limit=8).run(task_of(precision="tf32"), ())
