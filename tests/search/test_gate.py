"""The gate of a search: a trial whose pretraining has collapsed ends before it adapts to an image."""

import optuna
import pytest
import torch

from fpp_sweep.core.prompt import from_bytes
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import waiting_record
from fpp_sweep.search.job import TrialContext, run_job
from fpp_sweep.search.samplers import GaussianProcessSampler
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.errors import InputError
from fpp_sweep.trial.trial import Collapsed, drift_of, run_trial
from tests.kit.names import named
from tests.kit.records import sweep_info
from tests.kit.workers import executing, plan_of

SPACE = named("""
base: {views.count: 2, fpp.draws: 1}
params: {fpp.gamma1: {low: 0.1, high: 30, log: true}, fpp.class_var: {low: x0.001, high: x4, log: true}}
search: {trials: 8}
work: {datasets: [digits, scenes], baselines: []}
""")
QUICK = preset("tiny").replace({"views.count": 2, "fpp.draws": 1, "fpp.class_var": 1e-4})
GOOD, BAD = QUICK, QUICK.replace({"fpp.gamma1": 30.0, "fpp.class_var": 0.05})
GATE = 0.4


@pytest.fixture(scope="module")
def worker(make_worker):
    return make_worker(limit=20)


def spy_on(executor):
    """Return an executor with a list of the titles of the tasks that ended."""
    titles = []

    class Spy:
        def results(self, tasks, order=0):
            for task, result in executor.results(tasks, order):
                titles.append(task.title)
                yield task, result

    return Spy(), titles


@pytest.mark.parametrize("kind", ["inline", "scheduled"])
def test_a_collapsed_trial_ends_before_the_first_image(worker, tmp_path, kind):
    plan = plan_of(worker, datasets=("digits", "scenes"), gate=GATE)
    with executing(kind, worker, plan, tmp_path) as executor:
        spy, titles = spy_on(executor)
        with pytest.raises(Collapsed) as ended:
            run_trial(plan, BAD, "val", spy)
    assert ended.value.drift > GATE
    assert titles
    assert all("pretraining" in title for title in titles)


def test_the_gate_changes_no_bit_of_a_trial_that_passes(worker, tmp_path):
    results = []
    for gate in (None, 3.9):  # squared distances of unit vectors are at most 4
        plan = plan_of(worker, datasets=("digits", "scenes"), gate=gate)
        with executing("inline", worker, plan, tmp_path / str(gate)) as executor:
            results.append(run_trial(plan, BAD, "val", executor))
    (plain, plain_parts), (gated, gated_parts) = results
    assert plain.average == gated.average
    for first, second in zip(plain_parts, gated_parts, strict=True):
        assert first.drift == second.drift > GATE
        assert torch.equal(*[from_bytes(worker.clip, part.prompt).context for part in (first, second)])


def test_a_gate_and_its_absence_do_not_share_unfinished_prompts(worker, tmp_path):
    gated, plain = plan_of(worker, gate=GATE), plan_of(worker)
    with executing("inline", worker, plain, tmp_path) as executor:
        with pytest.raises(Collapsed):
            run_trial(gated, BAD, "val", executor)
        with pytest.raises(Collapsed):  # the end is cached
            run_trial(gated, BAD, "val", executor)
        (part,) = run_trial(plain, BAD, "val", executor)[1]
    with executing("inline", worker, plain, tmp_path / "fresh") as executor:
        (fresh,) = run_trial(plain, BAD, "val", executor)[1]
    assert drift_of(part.prompt) == drift_of(fresh.prompt)
    assert torch.equal(*[from_bytes(worker.clip, each.prompt).context for each in (part, fresh)])


@pytest.fixture(scope="module")
def folder(worker, tmp_path_factory):
    """A sweep's folder with a good trial, one that collapsed, and a baseline with the settings of the latter."""
    folder = SweepFolder(tmp_path_factory.mktemp("sweep"))
    space = parse_space(SPACE, "space.yaml")
    folder.write_info(sweep_info(name="sweep", state="running", space=space.plain()))
    plan = plan_of(worker, datasets=("digits", "scenes"))
    for number, config in enumerate((GOOD, BAD)):
        params = {"fpp.gamma1": config.fpp.gamma1, "fpp.class_var": config.fpp.class_var}
        folder.write_trial(waiting_record(f"trial-000{number}", "trial", config, number=number, params=params))
    folder.write_trial(waiting_record("baseline-fpp_paper", "baseline", BAD))
    with executing("inline", worker, plan, folder.tasks) as executor:
        context = TrialContext(folder=folder, executor=executor, plan=plan, space=space)
        for record in folder.trials():
            run_job(context, record.name, "val", 0)
    return folder


def test_a_collapsed_trial_is_on_record_with_its_drift_and_is_not_on_the_front(folder):
    good, bad = folder.trial("trial-0000"), folder.trial("trial-0001")
    assert (good.state, bad.state) == ("complete", "collapsed")
    assert good.constraints == {"gate": good.drift - GATE}
    assert bad.constraints == {"gate": bad.drift - GATE}
    assert good.feasible
    assert not bad.feasible
    assert (bad.values, bad.results) == (None, {})
    assert bad.seconds_without_result > 0
    assert [record.name for record in front_of(folder.info(), folder.trials()).finished] == ["trial-0000"]


def test_baselines_have_no_gate(folder):
    baseline = folder.trial("baseline-fpp_paper")
    assert (baseline.state, baseline.constraints) == ("complete", {})
    assert baseline.drift > GATE


def test_the_study_has_the_drift_as_a_constraint_and_does_not_begin_the_trial_again(folder):
    study = SweepStudy(parse_space(SPACE, "space.yaml"), records=folder.trials())
    good, bad = study.trials()
    assert (good.state.name, bad.state.name) == ("COMPLETE", "PRUNED")
    assert good.constraints["gate"] < 0 < bad.constraints["gate"]
    assert study.unfinished() == []


def test_the_sampler_learns_the_border_from_collapsed_trials():
    study = optuna.create_study(directions=["maximize"])
    x = {"x": optuna.distributions.FloatDistribution(0, 1)}
    for number in range(20):
        value = number / 19
        has_collapsed = value > 0.5  # where the objective would be best
        trial = optuna.trial.create_trial(
            params={"x": value},
            distributions=x,
            value=None if has_collapsed else value,
            state=optuna.trial.TrialState.PRUNED if has_collapsed else optuna.trial.TrialState.COMPLETE,
        )
        trial.set_constraint("gate", value - 0.5)
        study.add_trial(trial)
    study.sampler = GaussianProcessSampler(seed=1, n_startup_trials=4)
    assert 0.3 < study.ask(x).params["x"] < 0.55


@pytest.mark.parametrize(
    ("settings", "gate"),
    [
        ([], GATE),
        (["search.gate=0.7"], 0.7),
        (["search.gate=false"], None),
        (["work.model=ViT-B-16/openai"], None),
        (["work.model=ViT-B-16/openai", "search.gate=0.1"], 0.1),
        (["search.evaluate_only=true"], None),
    ],
)
def test_the_embedded_model_has_a_gate_by_default(settings, gate):
    assert parse_space(SPACE, "space.yaml", settings).gate() == gate


def test_a_gate_without_pretraining_is_a_note_and_true_is_refused():
    words = ["base.prompt=a photo of a", "params={adapt.lr: {low: 0.001, high: 0.1}}"]
    assert not parse_space(SPACE, "space.yaml", words).notes()
    (note,) = parse_space(SPACE, "space.yaml", [*words, "search.gate=0.3"]).notes()
    assert note.startswith("search.gate has no effect")
    with pytest.raises(InputError, match=r"search\.gate: must be a number"):
        parse_space(SPACE, "space.yaml", ["search.gate=true"])
