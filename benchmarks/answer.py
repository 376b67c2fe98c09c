"""Error rates of the answer of a sweep: `python -m benchmarks.answer`.

Sweeps are simulated with a planted truth, image by image: every trial has a true accuracy and calibration gap, every
pretraining seed shifts both, images are shared by all records. The simulated sweep is written as a folder, and the
package chooses finalists, compares and recommends. Seed spreads and trials that lose much accuracy are as measured on
real trials of the embedded model (RESULTS.md, Answer).

Parts: `null` (nothing differs), `lucky` (trials that lose too much, with lucky seeds), `search` (trials as measured),
`gain` (one trial is better by two points), `rule` (what is recommended, by what is true), `coverage` (intervals over
images and seeds), `margin` (losses that are ruled out), `spread` (calibrated models whose confidences are spread
differently).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fpp_sweep.cli import parser, run
from fpp_sweep.core.metrics import BINS, Confidences
from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.records.measurements import BLOCK_STATS_FILE
from fpp_sweep.records.recommendation import Answer, margin_of
from fpp_sweep.records.records import FINAL, Kind, SplitResult, SweepInfo, TrialRecord
from fpp_sweep.search.finalists import choose_champion, choose_finalists
from fpp_sweep.space.objectives import FLOOR, Objective
from fpp_sweep.space.work import DEFAULT_FLOOR
from fpp_sweep.statistics.block_stats import BlockStats, StatsBySeed, metric_value, to_bytes
from fpp_sweep.statistics.bootstrap import NO_MAP, SplitSamples, sample_record
from fpp_sweep.statistics.paired import Difference, SplitStatistics, adjust_p_values

METRICS = ("accuracy", "ece")
OBJECTIVES = ("accuracy", "smooth_ece")  # of a simulated sweep
OWN_DRAW = 0.12  # share of images whose outcome a record draws on its own; gives paired differences of 0.4 points
BASE_GAP = 0.10  # confidence minus accuracy of a plain baseline
BASELINES = ("zero_shot", "tpt", "ctpt", "otpt", "fpp_paper", "fpp_code")
STOCHASTIC = ("fpp_paper", "fpp_code")  # baselines with a pretrained prompt
SEARCH_SEED = (0,)
SEEDS = (1, 2, 3)  # of the final stage
TEST_SEEDS = (4, 5, 6)


@dataclass(frozen=True, slots=True)
class Truth:
    """The true effect of one record, beside a plain baseline; as shares, not in percent."""

    accuracy: float = 0.0  # added
    gap: float = BASE_GAP  # confidence minus accuracy
    accuracy_spread: float = 0.0  # standard deviation over pretraining seeds
    gap_spread: float = 0.0
    ceiling: float = np.inf  # of the accuracy that a seed adds
    failing: float = 0.0  # share of the seeds that lose 8 points of accuracy

    def of_seed(self, generator: np.random.Generator) -> tuple[float, float]:
        """Draw one seed's effect; a seed that loses accuracy gains overconfidence."""
        shift = generator.standard_normal()
        other = generator.standard_normal()
        gap = self.gap + self.gap_spread * (-0.6 * shift + 0.8 * other)
        accuracy = min(self.accuracy + self.accuracy_spread * shift, self.ceiling)
        if self.failing and generator.random() < self.failing:
            accuracy -= 0.08
        return accuracy, gap


class World:
    """Images of some datasets, the same for every record."""

    def __init__(self, images: int, datasets: int, seed: int) -> None:
        self.images = images
        self.names = [f"set{number}" for number in range(datasets)]
        self.generator = np.random.default_rng(seed)
        self._latent: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = {}

    def stats(self, dataset: str, split: str, effect: tuple[float, float]) -> BlockStats:
        """Draw the predictions of a record with a seed's effect, as block statistics."""
        accuracy, gap = effect
        probability, outcome = self._images_of(dataset, split)
        own = self.generator.random(self.images) < OWN_DRAW
        drawn = np.where(own, self.generator.random(self.images), outcome)
        correct = drawn < np.clip(probability + accuracy, 0, 1)
        confidence = np.clip(probability + accuracy + gap, 0.02, 1.0)
        ids = [f"{split} {index}" for index in range(self.images)]
        losses = np.zeros(self.images)
        return BlockStats.of(dataset, ids, Confidences(confidence.astype(np.float32), correct), losses, losses)

    def _images_of(self, dataset: str, split: str) -> tuple[np.ndarray, np.ndarray]:
        key = dataset, split
        if key not in self._latent:
            probability = true_probabilities(self.generator, self.images)
            self._latent[key] = probability, self.generator.random(self.images)
        return self._latent[key]


def true_probabilities(generator: np.random.Generator, images: int) -> np.ndarray:
    """Return the chance that an image is classified correctly by a plain baseline: 66 % in the mean."""
    return 0.1 + 0.85 * generator.beta(1.7, 0.9, images)


class TrueMetrics:
    """True accuracy and ECE of an effect, from many images without the chance of their outcomes."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self._probability = true_probabilities(generator, 200_000)
        self._gaps = np.linspace(-0.4, 0.6, 201)
        self._ece = np.array([self._ece_of(gap) for gap in self._gaps])

    def _ece_of(self, gap: float) -> float:
        confidence = np.clip(self._probability + gap, 0.02, 1.0)
        bins = np.clip((confidence * BINS).astype(int), 0, BINS - 1)
        sums = np.bincount(bins, self._probability - confidence, BINS)
        return 100 * np.abs(sums).sum() / len(confidence)

    def of(self, truth: Truth, draws: int = 400) -> dict[str, float]:
        """Return the means over pretraining seeds."""
        if truth.accuracy_spread == truth.gap_spread == 0:
            draws = 1
        generator = np.random.default_rng(1)
        effects = np.array([truth.of_seed(generator) for _ in range(draws)])
        ece = np.interp(effects[:, 1], self._gaps, self._ece)
        return {"accuracy": 100 * (self._probability.mean() + effects[:, 0].mean()), "ece": float(ece.mean())}


TRUE = TrueMetrics()


# --- a simulated sweep ------------------------------------------------------------------------------


@dataclass(slots=True)
class Simulation:
    """A sweep that never ran, in a folder."""

    folder: SweepFolder
    world: World
    truths: dict[str, Truth]
    effects: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)

    def measure(self, name: str, split: str, image_split: str, seeds: Sequence[int]) -> None:
        """Write a record's result on a split."""
        table = {}
        for dataset in self.world.names:
            for seed in seeds:
                table[dataset, seed] = self.world.stats(dataset, image_split, self.effect(name, seed))
        path = self.folder.artifacts(name) / split / BLOCK_STATS_FILE
        path.parent.mkdir(parents=True)
        path.write_bytes(to_bytes(table))
        result = split_result(table, seeds)
        record = self.folder.trial(name)
        results = {**record.results, split: result}
        values = record.values or [result.average[metric] for metric in OBJECTIVES]
        self.folder.write_trial(replace(record, results=results, values=values))

    def effect(self, name: str, seed: int) -> tuple[float, float]:
        if (name, seed) not in self.effects:
            self.effects[name, seed] = self.truths[name].of_seed(self.world.generator)
        return self.effects[name, seed]

    @staticmethod
    def is_stochastic(name: str) -> bool:
        """Return True for a record with a pretrained prompt: a trial, or one of some baselines."""
        return name.startswith("trial") or name.removeprefix("baseline-") in STOCHASTIC


def split_result(table: StatsBySeed, seeds: Sequence[int]) -> SplitResult:
    by_seed: dict[str, dict[str, dict[str, float]]] = {}
    for (dataset, seed), stats in table.items():
        values = {metric: metric_value(metric, stats) for metric in OBJECTIVES}
        by_seed.setdefault(str(seed), {})[dataset] = values
    datasets = {}
    for dataset in by_seed[str(seeds[0])]:
        datasets[dataset] = mean_of([by_dataset[dataset] for by_dataset in by_seed.values()])
    return SplitResult(
        average=mean_of(list(datasets.values())),
        datasets=datasets,
        deviation={},
        samples=sum(stats.total for (_, seed), stats in table.items() if seed == seeds[0]),
        seconds={},
        worker_seconds=0.0,
        by_seed=by_seed if len(seeds) > 1 else {},
    )


def mean_of(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each metric."""
    return {metric: float(np.mean([row[metric] for row in rows])) for metric in OBJECTIVES}


def simulate(
    path: Path,
    truths: dict[str, Truth],
    images: int,
    datasets: int,
    seed: int,
    test_seeds: tuple[int, ...] = TEST_SEEDS,
) -> Simulation:
    """Search, run the final stage and test, as the package decides."""
    folder = SweepFolder(path)
    objectives = (Objective(metric="accuracy", goal="max"), Objective(metric="smooth_ece", goal="min"))
    info = SweepInfo(name=path.name, created=0.0, state="running", space={}, objectives=objectives, search_split="val")
    folder.write_info(info)
    simulation = Simulation(folder, World(images, datasets, seed), truths)
    write_search(simulation)
    finalists = run_final_stage(simulation, info)
    run_test(simulation, info, finalists, test_seeds)
    folder.write_info(replace(info, state="finished"))
    return simulation


def write_search(simulation: Simulation) -> None:
    """Write all records, with their results on the validation split."""
    for number, name in enumerate(simulation.truths):
        kind: Kind = "trial"
        if name.startswith("baseline-"):
            kind = "baseline"
        prompt, method = "a photo of a", name.removeprefix("baseline-")
        if simulation.is_stochastic(name):
            prompt, method = "fpp", "tpt"
        record = TrialRecord(
            name=name, kind=kind, state="complete", number=number, finished=float(number + 1), key=name,
            config={"prompt": prompt, "method": method}, params={"fpp.gamma1": float(number)},
        )  # fmt: skip
        simulation.folder.write_trial(record)
        simulation.measure(name, "val", "val", SEARCH_SEED)
    least = accuracy_of(simulation.folder.trial("baseline-zero_shot")) - DEFAULT_FLOOR
    for name in simulation.truths:
        record = simulation.folder.trial(name)
        if record.kind == "trial":
            simulation.folder.write_trial(replace(record, constraints={FLOOR: least - accuracy_of(record)}))


def accuracy_of(record: TrialRecord) -> float:
    return record.results["val"].average["accuracy"]


def run_final_stage(simulation: Simulation, info: SweepInfo) -> list[TrialRecord]:
    """Measure the finalists with fresh seeds and images, and return them."""
    folder = simulation.folder
    finalists = choose_finalists(folder, front_of(info, folder.trials()), 6)
    if finalists:
        simulation.measure("baseline-zero_shot", FINAL, "fresh", SEARCH_SEED)
    for finalist in finalists:
        simulation.measure(finalist.name, FINAL, "fresh", SEEDS)
    return [folder.trial(finalist.name) for finalist in finalists]


def run_test(
    simulation: Simulation, info: SweepInfo, finalists: Sequence[TrialRecord], test_seeds: tuple[int, ...]
) -> None:
    """Measure the baselines and the best finalists on the test split."""
    folder = simulation.folder
    names = [f"baseline-{label}" for label in BASELINES]
    for record in choose_champion(folder, front_of(info, folder.trials()), finalists):
        names.append(record.name)
    for name in names:
        seeds: tuple[int, ...] = SEARCH_SEED
        if simulation.is_stochastic(name):
            seeds = test_seeds
        simulation.measure(name, "test", "test", seeds)


def answer_of(simulation: Simulation) -> Answer:
    folder = simulation.folder
    return statistics_of(folder, folder.info(), folder.trials()).answer


def baselines_truth(spread: float = 0.0) -> dict[str, Truth]:
    """Baselines that equal zero-shot; those with a pretrained prompt vary over seeds."""
    truths = {}
    for label in BASELINES:
        own = spread if label in STOCHASTIC else 0.0
        truths[f"baseline-{label}"] = Truth(accuracy_spread=own, gap_spread=own)
    return truths


def measured_trial(generator: np.random.Generator) -> Truth:
    """Draw a trial as measured on the embedded model (RESULTS.md, Answer): most lie on a plateau, some below a cliff.

    Seeds of a trial below the cliff lose different amounts of accuracy, and none of them rises above the plateau.
    """
    if generator.random() < 0.25:
        loss = generator.uniform(0.03, 0.35)
        spread, gap_spread = 0.045 * np.exp(0.4 * generator.standard_normal(2))
        return Truth(-loss, BASE_GAP + 0.1 * generator.random(), spread, gap_spread, ceiling=0.0)
    spread = 0.005 * np.exp(0.8 * generator.standard_normal())
    gain = 0.01 * generator.standard_normal() - 0.005
    gap = BASE_GAP + 0.015 * generator.standard_normal()
    return Truth(gain, max(gap, 0.02), spread, spread, ceiling=max(gain, 0.0) + 0.01)


# --- what is reported -------------------------------------------------------------------------------


@dataclass(slots=True)
class Count:
    """A share with its standard error."""

    hits: int = 0
    cases: int = 0

    def add(self, hit: bool) -> None:
        self.hits += hit
        self.cases += 1

    def __str__(self) -> str:
        if not self.cases:
            return "no case"
        share = self.hits / self.cases
        error = (max(share * (1 - share), 0.25 / self.cases) / self.cases) ** 0.5
        return f"{100 * share:.1f} ± {100 * error:.1f} % of {self.cases}"


def is_truly_worse(truth: Truth, zero_shot: Truth) -> bool:
    """Return True if a trial is truly worse than zero-shot by more than the margin."""
    own, reference = TRUE.of(truth), TRUE.of(zero_shot)
    lost_accuracy = reference["accuracy"] - own["accuracy"] > margin_of("accuracy", {})
    lost_calibration = own["ece"] - reference["ece"] > margin_of("ece", {})
    return lost_accuracy or lost_calibration


def run_null(seeds: range, images: int) -> None:
    """Print how often a difference is shown though nothing differs, for each family that Holm corrects."""
    for spread in (0.0, 0.002, 0.005, 0.01):
        false = {"zero_shot": Count(), "tpt": Count(), "others": Count()}
        recommended = Count()
        for seed in seeds:
            truths = baselines_truth(spread)
            for number in range(16):
                truths[f"trial-{number:04d}"] = Truth(accuracy_spread=spread, gap_spread=spread)
            answer = simulated_answer(truths, images, seed)[1]
            shown = {baseline for (baseline, _), paired in answer.differences.items() if paired.mark}
            false["zero_shot"].add("baseline-zero_shot" in shown)
            false["tpt"].add("baseline-tpt" in shown)
            false["others"].add(bool(shown - {"baseline-zero_shot", "baseline-tpt"}))
            recommended.add(answer.recommended is not None)
        cells = " | ".join(f"{family}: {count}" for family, count in false.items())
        print(f"| nothing differs, seed spread {100 * spread:g} | {cells} | recommended: {recommended} |", flush=True)


def run_lucky(seeds: range, images: int) -> None:
    """Print how often a trial that loses too much is recommended: with the seeds of the final stage, and with others.

    All six trials lose 1.2 or 1.5 points of accuracy, of a margin of 1, and gain four points of ECE.
    """
    for loss in (0.012, 0.015):
        cells = []
        for title, test_seeds in (("seeds of the final stage", SEEDS), ("other seeds", TEST_SEEDS)):
            recommended = Count()
            for seed in seeds:
                truths = baselines_truth()
                for number in range(6):
                    gap = BASE_GAP - 2 * GAP_OF_TWO_POINTS
                    truths[f"trial-{number:04d}"] = Truth(accuracy=-loss, gap=gap, accuracy_spread=0.01)
                answer = simulated_answer(truths, images, seed, test_seeds)[1]
                recommended.add(answer.recommended is not None)
            cells.append(f"{title}: {recommended}")
        print(f"| a true loss of {100 * loss:g} | {' | '.join(cells)} |", flush=True)


def run_search(seeds: range, images: int) -> None:
    worse = Count()
    any_recommended = Count()
    zero_shot = Truth()
    for seed in seeds:
        generator = np.random.default_rng([seed, 5])
        truths = baselines_truth(0.005)
        for number in range(24):
            truths[f"trial-{number:04d}"] = measured_trial(generator)
        simulation, answer = simulated_answer(truths, images, seed)
        any_recommended.add(answer.recommended is not None)
        if answer.recommended is not None:
            worse.add(is_truly_worse(simulation.truths[answer.recommended], zero_shot))
    print(f"recommended trials truly worse than zero-shot by more than the margin: {worse}")
    print(f"sweeps that recommend a trial: {any_recommended}", flush=True)


GAP_OF_TWO_POINTS = 0.0223  # a gap that is smaller by this share has an ECE that is smaller by two points
GAINS = {  # what one trial is truly better by: a share of accuracy, and of the calibration gap
    "accuracy": (0.02, 0.0),
    "ece": (0.0, GAP_OF_TWO_POINTS),
    "both": (0.02, GAP_OF_TWO_POINTS),
}
LEAST_GAIN = 1.8  # points that count as two: the spread over seeds costs a planted trial up to 0.1


def run_gain(seeds: range, images: int) -> None:
    for kind, (accuracy, calibration) in GAINS.items():
        for spread in (0.002, 0.005, 0.0085):
            found = Count()
            for seed in seeds:
                generator = np.random.default_rng([seed, 6])
                truths = baselines_truth(spread)
                for number in range(24):
                    truths[f"trial-{number:04d}"] = measured_trial(generator)
                truths["trial-0007"] = Truth(accuracy, BASE_GAP - calibration, spread, spread)
                simulation, answer = simulated_answer(truths, images, seed)
                recommended = answer.recommended
                found.add(recommended is not None and is_truly_better(simulation.truths[recommended]))
            print(f"| a trial is better by 2 points of {kind}, seed spread {100 * spread:g} | {found} |", flush=True)


def is_truly_better(truth: Truth) -> bool:
    """Return True for a trial that is better than zero-shot by two points in a metric, without a loss in the other."""
    own, reference = TRUE.of(truth), TRUE.of(Truth())
    gains = (own["accuracy"] - reference["accuracy"], reference["ece"] - own["ece"])
    return max(gains) > LEAST_GAIN and not is_truly_worse(truth, Truth())


def simulated_answer(
    truths: dict[str, Truth], images: int, seed: int, test_seeds: tuple[int, ...] = TEST_SEEDS
) -> tuple[Simulation, Answer]:
    with tempfile.TemporaryDirectory() as scratch:
        simulation = simulate(Path(scratch) / "sweep", truths, images, datasets=5, seed=seed, test_seeds=test_seeds)
        return simulation, answer_of(simulation)


def sampled(truths: dict[str, Truth], images: int, seed: int) -> SplitSamples:
    """Sample records with three seeds each on one split, without a search."""
    world = World(images, 5, seed)
    tables: dict[str, StatsBySeed] = {}
    deterministic = []
    for name, truth in truths.items():
        seeds: tuple[int, ...] = SEEDS[:1]
        if truth.accuracy_spread or truth.gap_spread or name.startswith("trial"):
            seeds = SEEDS
        else:
            deterministic.append(name)
        effects = {number: truth.of_seed(world.generator) for number in seeds}
        table = {}
        for dataset in world.names:
            for number in seeds:
                table[dataset, number] = world.stats(dataset, "test", effects[number])
        tables[name] = table
    return resampled(tables, METRICS, deterministic)


def resampled(
    tables: Mapping[str, StatsBySeed], metrics: Sequence[str], deterministic: Collection[str]
) -> SplitSamples:
    """Resample the metrics of records with the same images."""
    records = {}
    for name, table in tables.items():
        records[name] = sample_record(name, {NO_MAP: table}, "test", metrics, deterministic=name in deterministic)
        images = {dataset: stats.total for (dataset, _), stats in table.items()}
    return SplitSamples("test", images, records)


def tested_difference(samples: SplitSamples, first: str, second: str, metric: str) -> Difference | None:
    """Return the difference of two records as a family of its own; None if they are too near to calibration."""
    paired = SplitStatistics(samples).difference(first, second, metric)
    return None if paired is None else adjust_p_values([paired])[0]


def run_coverage(seeds: range, images: int) -> None:
    for spread in (0.0, 0.002, 0.005, 0.01):
        covered = {metric: Count() for metric in METRICS}
        widths: dict[str, list[float]] = {metric: [] for metric in METRICS}
        for seed in seeds:
            generator = np.random.default_rng([seed, 7])
            truths = {"zero_shot": Truth(), "tpt": Truth(0.003, BASE_GAP + 0.02)}
            for number in range(4):
                gain = 0.01 * generator.standard_normal()
                gap = BASE_GAP + 0.02 * generator.standard_normal()
                truths[f"trial-{number}"] = Truth(gain, gap, spread, spread)
            samples = sampled(truths, images, seed)
            pairs = [(f"trial-{number}", "zero_shot") for number in range(4)]
            for difference in adjust_p_values(SplitStatistics(samples).differences(pairs, METRICS)):
                true = TRUE.of(truths[difference.first])[difference.metric] - TRUE.of(Truth())[difference.metric]
                covered[difference.metric].add(difference.low <= true <= difference.high)
                widths[difference.metric].append(difference.high - difference.low)
        cells = [f"{metric}: {covered[metric]}, width {np.median(widths[metric]):.2f}" for metric in METRICS]
        print(f"| differences to zero-shot, seed spread {100 * spread:g} | {' | '.join(cells)} |", flush=True)


REFERENCE_GAPS = (0.0, 0.03, 0.04, 0.05, 0.06, 0.1)  # true over-confidence of zero-shot, as shares
TRUE_LOSSES = (1.25, 2.0, -2.0)  # points of ECE, to be judged by a margin of 1


def run_margin(seeds: range, images: int) -> None:
    """Print how often a loss of ECE beyond the margin is ruled out; that of a worse trial in 5 % of cases at most."""
    for gap in REFERENCE_GAPS:
        cells = []
        for loss in TRUE_LOSSES:
            truths = {
                "zero_shot": Truth(gap=gap),
                "trial": Truth(gap=gap_with_ece(TRUE.of(Truth(gap=gap))["ece"] + loss)),
            }
            ruled_out = Count()
            for seed in seeds:
                paired = tested_difference(sampled(truths, images, seed), "trial", "zero_shot", "ece")
                ruled_out.add(paired is not None and paired.excludes_loss_beyond(margin_of("ece", {})))
            cells.append(f"a true loss of {loss:g}: {ruled_out}")
        print(f"| ECE of zero-shot {TRUE.of(Truth(gap=gap))['ece']:.1f} | {' | '.join(cells)} |", flush=True)


def gap_with_ece(ece: float) -> float:
    """Return the over-confidence that has a true ECE, or none if the ECE is below 0."""
    gap = 0.0
    while TRUE.of(Truth(gap=gap))["ece"] < ece:
        gap += 0.0005
    return gap


WIDE_RANGE = (0.1, 1.0)  # confidences of one model; those of the other lie in a narrow range
# the narrow range, and the shares by which the narrow and the wide model are overconfident: their true ECE
SPREAD_CASES = (
    ((0.5, 1.0), 0.0, 0.0),
    ((0.52, 0.72), 0.0, 0.0),
    ((0.52, 0.72), 0.07, 0.07),
    ((0.52, 0.72), 0.082, 0.07),
    ((0.75, 0.95), 0.082, 0.07),
    ((0.5, 1.0), 0.0, 0.1),
    ((0.52, 0.72), 0.0, 0.1),
)


def run_spread(seeds: range, images: int) -> None:
    """Print how often two models whose confidences are spread differently have a significant difference in ECE.

    It should be rare where the true errors are equal, and frequent where they are not. A loss of the narrow model
    beyond the margin should be ruled out in 5 % of cases at most where it is true.
    """
    for narrow, narrow_error, wide_error in SPREAD_CASES:
        significant = Count()
        ruled_out = Count()
        for seed in seeds:
            generator = np.random.default_rng([seed, 9])
            tables = {
                "narrow": uniform_confidences(generator, images, narrow, narrow_error),
                "wide": uniform_confidences(generator, images, WIDE_RANGE, wide_error),
            }
            samples = resampled(tables, ["ece"], tables)
            paired = tested_difference(samples, "narrow", "wide", "ece")
            significant.add(paired is not None and paired.is_significant)
            ruled_out.add(paired is not None and paired.excludes_loss_beyond(margin_of("ece", {})))
        kind = f"{narrow[0]:g} to {narrow[1]:g}, true ECE {100 * narrow_error:.1f} and {100 * wide_error:.1f}"
        print(f"| confidences {kind} | significant {significant} | a loss beyond 1 ruled out {ruled_out} |", flush=True)


def uniform_confidences(
    generator: np.random.Generator, images: int, bounds: tuple[float, float], overconfidence: float
) -> StatsBySeed:
    """Return the block statistics of a model with uniform confidences on five datasets."""
    table = {}
    for number in range(5):
        confidence = generator.uniform(*bounds, images)
        correct = generator.random(images) < confidence - overconfidence
        ids = [str(index) for index in range(images)]
        losses = np.zeros(images)
        confidences = Confidences(confidence.astype(np.float32), correct)
        table[f"set{number}", 0] = BlockStats.of(f"set{number}", ids, confidences, losses, losses)
    return table


POINT_OF_ECE = 0.0111  # a gap that is larger by this share has an ECE that is larger by one point
PLATEAU = Truth(accuracy_spread=0.003, gap_spread=0.003)  # a trial that equals zero-shot
FAILING = Truth(gap=0.07, accuracy_spread=0.003, gap_spread=0.003, failing=0.33)  # a gain, but for seeds that fail
UNSTEADY = Truth(0.02, BASE_GAP, 0.005, 0.005), Truth(accuracy_spread=0.005, gap_spread=0.005)  # two points, and none
RULE_CASES: dict[str, tuple[dict[str, Truth], Truth, Truth]] = {  # baselines that differ, the first trial, five others
    "nothing differs": ({}, PLATEAU, PLATEAU),
    "trials equal zero-shot, TPT's ECE is 2.1 worse": (
        {"baseline-tpt": Truth(gap=BASE_GAP + 2.1 * POINT_OF_ECE)},
        PLATEAU,
        PLATEAU,
    ),
    "a third of the seeds of each trial fail": ({}, FAILING, FAILING),
    "a third of the seeds of one trial fail": ({}, FAILING, PLATEAU),
    "trials lose 1.25 of accuracy, gain 4 of ECE": ({}, *2 * (Truth(-0.0125, 0.06, 0.005, 0.005),)),
    "one trial gains 2 of accuracy": ({}, replace(PLATEAU, accuracy=0.02), PLATEAU),
    "the same, seeds differ by 0.5": ({}, *UNSTEADY),
    "one trial gains 1 of both, TPT's ECE is 1 worse": (
        {"baseline-tpt": Truth(0.003, BASE_GAP + POINT_OF_ECE)},
        replace(PLATEAU, accuracy=0.01, gap=BASE_GAP - POINT_OF_ECE),
        PLATEAU,
    ),
    "one trial gains 2 of both, TPT's ECE is 1 worse": (
        {"baseline-tpt": Truth(0.003, BASE_GAP + POINT_OF_ECE)},
        replace(PLATEAU, accuracy=0.02, gap=BASE_GAP - 2 * POINT_OF_ECE),
        PLATEAU,
    ),
}


def run_rule(seeds: range, images: int) -> None:
    """Print how often a trial is recommended, by what is true of six trials and the baselines."""
    for title, (changed, first, others) in RULE_CASES.items():
        recommended = Count()
        for seed in seeds:
            truths = baselines_truth(0.003) | changed | {"trial-0000": first}
            for number in range(1, 6):
                truths[f"trial-{number:04d}"] = others
            recommended.add(simulated_answer(truths, images, seed)[1].recommended is not None)
        print(f"| {title} | {recommended} |", flush=True)


PARTS: dict[str, Callable[[range, int], None]] = {
    "null": run_null,
    "rule": run_rule,
    "lucky": run_lucky,
    "search": run_search,
    "gain": run_gain,
    "coverage": run_coverage,
    "margin": run_margin,
    "spread": run_spread,
}


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.answer", __doc__ or "")
    options.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    options.add_argument("--sweeps", type=int, default=200, help="simulated sweeps of each kind")
    options.add_argument("--first", type=int, default=0, help="seed of the first simulated sweep of each kind")
    options.add_argument("--images", type=int, default=1000, help="of each of five datasets, in a split")
    args = options.parse_args(argv)
    for part in args.parts or PARTS:
        print(f"\n{part}, {args.sweeps} sweeps, 5 x {args.images} images")
        PARTS[part](range(args.first, args.first + args.sweeps), args.images)


if __name__ == "__main__":
    run(main)
