"""The methods of docs/methods.md against golden numbers of their released programs, and against their naive forms."""

import pytest
import torch
from torch.nn import functional as F

from fpp_sweep.core.methods import build_method
from fpp_sweep.core.methods.base import Classifier, TextModel
from fpp_sweep.core.methods.mta import MeanShift
from fpp_sweep.core.methods.penalties import mean_nearest_angle, pairwise_huber
from fpp_sweep.core.methods.steps import view_scores, view_weights
from fpp_sweep.core.methods.tpt import confident_views, view_entropies
from fpp_sweep.core.methods.zero import count_votes, log_shares
from fpp_sweep.spec.config import AdaptConfig
from tests.golden import load, read
from tests.golden.tower import text_model
from tests.reference import family as naive

GOLDEN, SETTINGS = read("family_small")
CASES = {case["name"]: case for case in SETTINGS["cases"]}
SCALE = SETTINGS["logit_scale"]
VIEWS = F.normalize(GOLDEN["features/views"].float(), dim=-1)
TEXT = F.normalize(GOLDEN["features/text"], dim=-1)
CLASSIFIER = Classifier(features=TEXT, logit_scale=SCALE)
TOWER_VIEWS = F.normalize(load()["tta/views"].float(), dim=-1)
CONTEXT = load()["tta/ctx0"]
VOTING = 19  # number of views that vote, of 64

# tolerances of the golden README
PROBABILITIES, LOGITS, STATE, VOTES = 1e-4, 1e-3, 1e-5, 2e-3


class StubModel(TextModel):
    """A model that always has the golden text features, which come without a text tower."""

    def __init__(self):
        super().__init__(texts=None, logit_scale=SCALE)

    def classifier(self, context):
        return CLASSIFIER


MODEL = StubModel()


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


def predict(name, views, **settings):
    method = build_method(name, AdaptConfig(**settings), "fine_grained")
    return method.predict(MODEL, method.start(MODEL, None, len(views)), views)


def test_the_golden_text_features_give_the_golden_zero_shot_logits():
    close(CLASSIFIER.logits(VIEWS[:, :1])[:, 0], GOLDEN["zeroshot/logits"], LOGITS)


# ------------------------------------------------------------ ZERO


@pytest.mark.parametrize("released", [False, True])
def test_no_view_is_left_to_break_a_tie_if_all_views_vote(released):
    cosines = torch.tensor([[[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]]])
    votes = count_votes(cosines, torch.tensor([[0, 1]]), 2, released=released)
    close(votes, torch.tensor([[1.0, 1.0, 0.0]]), 1e-6)


HAND = GOLDEN["zero_hand/cosines"]
STREAM = VIEWS @ TEXT.T
VOTE_CASES = {
    "zero_released32": (STREAM, "described"),
    "zero_described": (STREAM, "described"),
    "zero_scale1024": (STREAM, "released"),
    "zero_released16": (GOLDEN["zero_released16/cosines"], "released"),
    "zero_hand_scale1024": (HAND, "released"),
    "zero_hand_described": (HAND, "described"),
}


def entropy_order(cosines):
    """Return the views in order of entropy.

    Half-precision cosines are divided in half precision, as in the released code.
    """
    return view_entropies((cosines / 0.01).float()).argsort(dim=-1, stable=True)


@pytest.mark.parametrize("case", VOTE_CASES)
def test_zero_reproduces_the_golden_votes(case):
    cosines, form = VOTE_CASES[case]
    votes = count_votes(cosines.float(), entropy_order(cosines), VOTING, released=form == "released")
    decided = torch.ones(len(cosines), dtype=torch.bool)
    if f"{case}/margin" in GOLDEN:
        decided = GOLDEN[f"{case}/margin"] > 1e-3  # for other samples, rounding decides a tie
        assert int((~decided).sum()) <= 3
    assert torch.equal(votes.argmax(-1)[decided], GOLDEN[f"{case}/pred"].long()[decided])
    if f"{case}/p_bar" in GOLDEN:
        close(votes[decided], GOLDEN[f"{case}/p_bar"][decided], VOTES)
    else:
        ties = GOLDEN[f"{case}/tied_classes"] > 1
        assert torch.equal(votes[~ties], GOLDEN[f"{case}/votes"][~ties].float())
        assert torch.equal((votes - GOLDEN[f"{case}/votes"]).sum(-1), ties.float())


@pytest.mark.parametrize("form", ["described", "released"])
@pytest.mark.parametrize("cosines", [STREAM, HAND], ids=["stream", "hand"])
def test_zero_equals_the_naive_form(cosines, form):
    order = entropy_order(cosines)
    actual = log_shares(count_votes(cosines, order, VOTING, released=form == "released")).exp()
    for sample, ranks, shares in zip(cosines, order.tolist(), actual, strict=True):
        close(shares, naive.vote_shares(naive.zero(sample, ranks, VOTING, released=form == "released")), 1e-5)


def test_zero_mean_reproduces_the_golden_probabilities_and_the_naive_form():
    actual = predict("zero_mean", VIEWS)[0].softmax(-1)
    close(actual, GOLDEN["zero_mean/probs"], PROBABILITIES)
    for sample, probabilities in zip(VIEWS[:5], actual, strict=False):
        close(probabilities, naive.zero_mean(sample, TEXT, SCALE), 1e-5)


def test_the_method_zero_predicts_the_class_with_the_most_votes():
    logits, _ = predict("zero", VIEWS)
    assert torch.equal(logits.argmax(-1), GOLDEN["zero_described/pred"].long())
    close(logits.logsumexp(-1), torch.zeros(len(VIEWS)), 1e-5)


# ------------------------------------------------------------ MTA


@pytest.mark.parametrize("case", ["mta", "mta_sharp"])
def test_mta_reproduces_the_golden_modes_and_logits(case):
    shift = MeanShift(CASES[case]["lambda_q"], CASES[case]["lambda_y"])
    modes = shift.modes(VIEWS, CLASSIFIER.logits(VIEWS).softmax(-1))
    close(modes.mode, GOLDEN[f"{case}/mode"], 5e-4)
    close(modes.weights, GOLDEN[f"{case}/y"], 5e-3)
    close(modes.squared_bandwidth.sqrt(), GOLDEN[f"{case}/bandwidth"], STATE)
    logits = CLASSIFIER.logits(modes.mode[:, None])[:, 0]
    close(logits, GOLDEN[f"{case}/logits"], 2e-2)
    near = (logits - GOLDEN[f"{case}/logits"]).abs().amax(-1) < 1e-3
    assert near.float().mean() >= 0.9


def test_mta_equals_the_naive_form():
    views, text = F.normalize(VIEWS[:6].double(), dim=-1), TEXT.double()
    modes = MeanShift().modes(views, (SCALE * views @ text.T).softmax(-1))
    for index, sample in enumerate(views):
        mode, weights, bandwidth = naive.mta(sample, text, SCALE)
        close(modes.mode[index], mode, 1e-6)
        close(modes.weights[index], weights, 1e-6)
        close(modes.squared_bandwidth[index].sqrt(), bandwidth, 1e-6)


def test_mta_of_equal_views_is_zero_shot():
    views = VIEWS[:3, :1].expand(-1, 8, -1)
    close(predict("mta", views)[0], predict("mta", views[:, :1])[0], LOGITS)


# ------------------------------------------------------------ TPS


@pytest.mark.parametrize(("case", "form"), [("tps", "class"), ("tps_lr1e-3", "class"), ("tps_shared", "shared")])
def test_tps_reproduces_the_golden_shifts_and_logits(case, form):
    settings = {"shift_lr": CASES[case]["lr"], "shift_form": form}
    logits, _ = predict("tps", VIEWS, **settings)
    close(logits, GOLDEN[f"{case}/logits"], 1e-2)
    method = build_method("tps", AdaptConfig(**settings), "fine_grained")
    confident = confident_views(VIEWS, CLASSIFIER.logits(VIEWS), 0.1)
    if f"{case}/grad" in GOLDEN:
        gradient = method.gradient(CLASSIFIER, confident)
        close(gradient, GOLDEN[f"{case}/grad"].view_as(gradient), 1e-4)
    shift = method.shift(CLASSIFIER, confident)
    close(shift, GOLDEN[f"{case}/shift"].view_as(shift), 1e-4)


@pytest.mark.parametrize("shared", [False, True])
def test_tps_equals_the_naive_form(shared):
    views, text = VIEWS[:6].double(), TEXT.double()
    method = build_method("tps", AdaptConfig(shift_form="shared" if shared else "class"), "fine_grained")
    classifier = Classifier(features=text, logit_scale=SCALE)
    actual = method.predict(MODEL, classifier, views)[0]
    for sample, logits in zip(views, actual, strict=True):
        close(logits, naive.tps(sample, text, SCALE, shared=shared)[0], 1e-4)


# ------------------------------------------------------------ TDA and BoostAdapter

STREAMS = {"tda_plain": "tda", "tda_views": "tda", "boost_plain": "boostadapter", "boost_views": "boostadapter"}


def cache_settings(case):
    settings = {"cache_alpha": CASES[case]["alpha"], "cache_beta": CASES[case]["beta"]}
    if STREAMS[case] == "boostadapter":
        settings |= {"boost_delta": CASES[case]["delta"], "boost_query": case.partition("_")[2]}
    return settings


def stream_views(case):
    if case == "tda_plain":
        return VIEWS[:, :1]
    return VIEWS


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_with_caches_is_reproduced(case):
    method = build_method(STREAMS[case], AdaptConfig(**cache_settings(case)), "fine_grained")
    state = method.start(MODEL, None, len(VIEWS))
    start = 0
    for last in SETTINGS["snapshots"]:
        views = stream_views(case)[start : last + 1]
        logits, state = method.predict(MODEL, state, views)
        close(logits, GOLDEN[f"{case}/logits"][start : last + 1], LOGITS)
        for name, stored in (("positive", "pos"), ("negative", "neg")):
            close(getattr(state, f"{name}_keys"), GOLDEN[f"{case}/{stored}_keys.{last}"], STATE)
            close(getattr(state, f"{name}_entropies"), GOLDEN[f"{case}/{stored}_entropy.{last}"], STATE)
        assert torch.equal(state.negative_masks, GOLDEN[f"{case}/neg_mask.{last}"])
        start = last + 1


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_with_caches_equals_the_naive_form(case):
    settings, views = cache_settings(case), stream_views(case)
    actual, _ = predict(STREAMS[case], views, **settings)
    stream = naive.CacheStream(
        text=TEXT.double(),
        scale=SCALE,
        alpha=settings["cache_alpha"],
        beta=settings["cache_beta"],
        delta=settings.get("boost_delta"),
        plain=settings.get("boost_query") == "plain",
    )
    for sample, logits in zip(views, actual, strict=True):
        close(logits.double(), stream.predict(sample.double()), LOGITS)


# ------------------------------------------------------------ A-TPT, SoC, R-TPT

ANGULAR = {
    "atpt_released_fg": ("atpt_released", 80.0),
    "atpt_released_fg_small": ("atpt_released", 10.0),
    "atpt_released_shifts": ("atpt", 10.0),
    "atpt_described_large": ("atpt", 80.0),
}


@pytest.fixture(scope="module")
def model():
    return text_model()


@pytest.mark.parametrize("case", ANGULAR)
def test_adaptation_with_an_angular_penalty_is_reproduced(model, case):
    name, weight = ANGULAR[case]
    method = build_method(name, AdaptConfig(penalty_weight=weight), "fine_grained")
    state = method.start(model, CONTEXT, len(TOWER_VIEWS))
    contexts = method.adapt_contexts(model, state, TOWER_VIEWS)
    close(contexts, GOLDEN[f"{case}/ctx"], PROBABILITIES)
    logits = method.predict(model, state, TOWER_VIEWS)[0]
    close(logits.softmax(-1), GOLDEN[f"{case}/probs"], PROBABILITIES)
    close(logits, GOLDEN[f"{case}/logits"], 2e-3)
    confident = method.select_views(model, state.first_gradient.features, TOWER_VIEWS)
    features = state.first_gradient.features.expand(len(TOWER_VIEWS), -1, -1)
    losses = method.loss(model, confident)(features, torch.arange(len(TOWER_VIEWS)))
    close(losses, GOLDEN[f"{case}/loss"], 1e-4 * weight)
    angles = mean_nearest_angle(model.features(contexts))
    close(angles, GOLDEN[f"{case}/theta_after"], STATE * 10)


def test_the_rows_of_atpt_have_the_published_weights_and_signs(model):
    initial_angle = float(GOLDEN["atpt_penalty/mean_angle"])
    expected_signs = {
        ("atpt", "fine_grained"): 1,
        ("atpt", "shifts"): 1,
        ("atpt_released", "fine_grained"): -1,
        ("atpt_released", "shifts"): 1,
        ("atpt_released", "imagenet"): 1,
    }
    for (name, group), sign in expected_signs.items():
        method = build_method(name, AdaptConfig(), group, group)
        contexts = method.adapt_contexts(model, method.start(model, CONTEXT, 2), TOWER_VIEWS[:2])
        growth = mean_nearest_angle(model.features(contexts)) - initial_angle
        assert (growth.sign() == sign).all(), (name, group)


@pytest.mark.parametrize("case", ["atpt_hand_duplicates", "atpt_hand_tie"])
def test_the_angular_penalty_is_constant_for_equal_classes_and_uses_the_first_of_two_nearest_classes(case):
    matrix = GOLDEN[f"{case}/matrix"].clone().requires_grad_()
    for penalty in (mean_nearest_angle, naive.nearest_angle):
        angle = penalty(F.normalize(matrix, dim=-1))  # the released code normalises the rows first
        close(angle.detach(), GOLDEN[f"{case}/mean_angle"], STATE)
        close(torch.autograd.grad(angle, matrix)[0], GOLDEN[f"{case}/grad"], 1e-4)


@pytest.mark.parametrize("delta", [0.1, 0.5, 2.0])
def test_the_huber_penalty_equals_the_naive_form(delta):
    features = torch.stack([TEXT, -TEXT.flip(0)])
    actual = pairwise_huber(features, delta)
    close(actual, torch.stack([naive.huber(text, delta) for text in features]), 1e-6)


def test_rtpt_reproduces_the_golden_contexts_scores_and_logits(model):
    method = build_method("rtpt", AdaptConfig(), "fine_grained")
    state = method.start(model, CONTEXT, len(TOWER_VIEWS))
    contexts = method.adapt_contexts(model, state, TOWER_VIEWS)
    has_gradient = ~GOLDEN["rtpt/saturated"]
    close(contexts[has_gradient], GOLDEN["rtpt/ctx"][has_gradient], PROBABILITIES)
    close(view_scores(TOWER_VIEWS), GOLDEN["rtpt_by_index/score"], STATE)
    close(view_weights(TOWER_VIEWS), GOLDEN["rtpt_by_index/weight"], 1e-3)
    logits = method.predict(model, state, TOWER_VIEWS)[0]
    close(logits[has_gradient], GOLDEN["rtpt_by_index/logits"][has_gradient], 2e-3)
    # Rounding decides the contexts of samples without a gradient; at the golden contexts their logits are equal, too.
    close(method.classify(model, GOLDEN["rtpt/ctx"], TOWER_VIEWS), GOLDEN["rtpt_by_index/logits"], 2e-3)
