"""Confirmation: after the search its front and the rivals run again, on images or with seeds that chose nobody.

All run the same rounds, so that differences are paired. What is decided before a round stands in `confirm.json` before
anybody acts on it, and is not decided again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fpp_sweep.core.datasets import open_dataset, read_custom
from fpp_sweep.core.images.chunks import CHUNK
from fpp_sweep.records import pareto
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, format_metric, front_of, values_of
from fpp_sweep.records.records import CONFIRMED, Step, TrialRecord
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Confirm
from fpp_sweep.spec.config import EMBEDDED_LIMIT, TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.specs import DatasetInfo
from fpp_sweep.spec.tasks import BATCH, views_for
from fpp_sweep.statistics.block_stats import ADDITIVE, Numbers
from fpp_sweep.statistics.bootstrap import UNLIKELY, front_support, needed
from fpp_sweep.trial.evidence import nearest, of_split, signed
from fpp_sweep.trial.trial import Plan, Round, metric_of

SHARE = 0.25  # of the search's device time
ENOUGH = 0.1  # points of expected regret, in every objective
ROUNDS = 4  # of fresh images
OWN = "adapt", "pretrain"  # what each trial does for itself
LEAST = 8  # of them in a round that was made smaller to be paid for
SPENT = "a quarter of the search's device time is spent"


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """What is known of some trials."""

    names: Sequence[str]
    better: Numbers  # (objectives, trials, draws), recentred, in points, more being better

    @property
    def support(self) -> dict[str, float]:
        return dict(zip(self.names, front_support(self.better).tolist(), strict=True))

    @property
    def best(self) -> list[str]:
        """By objective."""
        return [self.names[place] for place in self.better.mean(axis=2).argmax(axis=1)]

    @property
    def front(self) -> list[str]:
        values = self.better.mean(axis=2).T
        return [self.names[place] for place in pareto.front(values.tolist(), ["max"] * values.shape[1])]

    @property
    def regret(self) -> list[float]:
        """By objective, how much better than the best trial that of a draw is, in the mean over draws."""
        rows = zip(self.better, self.best, strict=True)
        return [float((row.max(axis=0) - row[self.names.index(name)]).mean()) for row, name in rows]

    def candidates(self, top: int) -> list[str]:
        """The front and whoever may be on it: by how often they are best at an objective, then by support, so many."""
        support, front, best = self.support, self.front, self.best
        winners = self.better.argmax(axis=1)  # of each draw, by objective
        wins = {name: (winners == place).mean(axis=1).max() for place, name in enumerate(self.names)}
        rivals = [name for name in self.names if name in front or support[name] >= UNLIKELY]
        return sorted(rivals, key=lambda name: (name not in best, -wins[name], -support[name]))[:top]


def rounds(confirm: Confirm, split: str, seeds: Sequence[int], sizes: Mapping[str, tuple[int, int]]) -> list[Round]:
    """Fresh images first, as many of each dataset, then seeds; `sizes` are those of the search, and what there is."""
    name = min(sizes, key=lambda name: sizes[name][1] - sizes[name][0])
    used, left = sizes[name][0], max(0, sizes[name][1] - sizes[name][0])
    images = confirm.images or (min(used, left) if left >= min(used, BATCH) else used)
    edges = tuple(used + images * number for number in range(min(ROUNDS, left // images) + 1))
    if len(edges) == 1 and not confirm.seeds:
        takes = f"all but {left}, fewer than the {images} of a round" if left else "them all"
        told = f"{name} has {used + left} images in split {split}, and work.limit takes {takes}"
        raise InputError(f"{told}: lower it, or give search.confirm.seeds", "search.confirm")
    found = [Round(edges[: count + 2], tuple(seeds)) for count in range(len(edges) - 1)]
    last = found[-1] if found else Round((), ())
    more = range(max(seeds) + 1, max(seeds) + 1 + confirm.seeds)
    return found + [Round(last.edges, (*last.seeds, *more[: count + 1])) for count in range(len(more))]


def require_fresh(space: Space, names: Sequence[str]) -> None:
    """Something to confirm on must be left of these datasets, as far as it can be seen from here."""
    work, split = space.work, space.search.split
    if space.search.confirm:
        root = Path(work.data_root) if work.data_root else None
        custom = read_custom(Path(work.dataset_file)) if work.dataset_file else {}
        datasets = [open_dataset(name, split, root, custom) for name in names]
        _rounds(space, {one.name: (len(one.limited(work.limit)), len(one)) for one in datasets})


def with_rounds(plan: Plan, space: Space, describe: Callable[[Sequence[str], str], Sequence[DatasetInfo]]) -> Plan:
    """The plan with what is there to confirm on: more of the split that was searched, or other seeds."""
    confirm, split, limit = space.search.confirm, space.search.split, space.work.limit or EMBEDDED_LIMIT
    if confirm is None:
        return plan
    there = tuple(describe(space.work.datasets, f"{split}:{limit + ROUNDS * (confirm.images or limit)}"))
    pairs = zip(plan.datasets[split], there, strict=True)
    found = _rounds(space, {used.name: (used.size, more.size) for used, more in pairs})
    used = there if found[0].edges else plan.datasets[split]
    return replace(plan, datasets={**plan.datasets, CONFIRMED: used}, rounds=tuple(found))


def _rounds(space: Space, sizes: Mapping[str, tuple[int, int]]) -> list[Round]:
    for metric in (objective.metric for objective in space.objectives):
        if metric.partition("/")[0] not in ADDITIVE:
            told = f"{metric} has no paired differences; confirm {', '.join(ADDITIVE)}, or nothing"
            raise InputError(told, "search.confirm")
    assert space.search.confirm
    return rounds(space.search.confirm, space.search.split, space.work.seeds, sizes)


def price(
    records: Mapping[str, TrialRecord], names: Sequence[str], plan: Plan, split: str, rounds: Sequence[Round]
) -> float:
    """Seconds on a device of a round after another, as in the search; the same views are drawn once for all."""
    before, now = rounds
    adapt, pretrain = (math.fsum(_seconds(records[name], split, stage) for name in names) for stage in OWN)
    more = set(now.seeds) - {*before.seeds, *plan.seeds}  # for the others there are prompts
    configs = {name: TrialConfig.of_record(record.config) for name, record in records.items()}
    views = {name: (views_for(config), config.precision) for name, config in configs.items()}
    alike = [record for name, record in records.items() if views[name] in {views[one] for one in names}]
    features = math.fsum(_seconds(record, split, "features") for record in alike)
    drawn = sum(_drawn(now, facts.size) - _drawn(before, facts.size) for facts in plan.datasets[CONFIRMED])
    features *= drawn / sum(facts.size for facts in plan.datasets[split])
    return adapt * (_size(now) - _size(before)) + pretrain * len(more) + features


def _drawn(one: Round, size: int) -> int:
    """Images of a dataset whose views are drawn for a round and those before: whole chunks, as they are kept."""
    first, last = (one.edges[0] // CHUNK * CHUNK, -(-one.edges[-1] // CHUNK) * CHUNK) if one.edges else (0, size)
    return len(one.seeds) * (min(size, last) - first)


def fresh(one: Round) -> str:
    return f"{one.edges[-1] - one.edges[0]} fresh images of each dataset" if one.edges else "the same images"


def _size(one: Round) -> float:
    """In units of a seed's images in the search."""
    return len(one.seeds) * ((one.edges[-1] - one.edges[0]) / one.edges[0] if one.edges else 1.0)


def _seconds(record: TrialRecord, split: str, stage: str) -> float:
    """Of a seed."""
    return math.fsum(costs.get(stage, 0.0) for costs in record.results[split].costs.values())


class Confirmation:
    """Says what runs next."""

    def __init__(self, confirm: Confirm, space: Space, folder: SweepFolder, plan: Plan) -> None:
        self._settings, self._top, self._folder, self._plan = asdict(confirm), confirm.top, folder, plan
        self._split, self._metrics = space.search.split, [objective.metric for objective in space.objectives]
        self._stems = tuple(needed(dict.fromkeys(metric.partition("/")[0] for metric in self._metrics)))
        known = folder.steps() if folder.confirm_file.exists() else []
        self.steps = known if all(step.settings == self._settings for step in known) else []
        last = self.steps[-1] if self.steps else Step()
        # had begun in an earlier process: what they have done is at hand
        self._again = [name for name in (*last.trials, *last.baselines) if name not in last.late]

    @property
    def round(self) -> Round:
        return self._rounds(self.steps[0].images)[len(self.steps) - 1]

    def _rounds(self, images: int) -> list[Round]:
        """Those of the plan, with so many fresh images each."""
        edges = [tuple(one.edges[0] + images * place for place in range(len(one.edges))) for one in self._plan.rounds]
        return [replace(one, edges=mine) for one, mine in zip(self._plan.rounds, edges, strict=True)]

    def next(self, running: Sequence[str]) -> str | None:
        """Who runs next; none while somebody else must end first, or when it is over."""
        if self._again:
            return self._again.pop(0)
        late = self.steps[-1].late if self.steps else ()
        if late and not self._is_spent(len(running)):
            self.steps[-1] = replace(self.steps[-1], late=late[1:])
            self._folder.write_steps(self.steps)
            return late[0]
        return self.next(running) if not running and self._goes_on() else None

    def tested(self, members: Sequence[str]) -> list[str]:
        """Of the front by the search those that have not left, and whoever else is on the confirmed one."""
        left = {name for step in self.steps for name in step.left}
        return [name for name in dict.fromkeys((*members, *self.front)) if name not in left]

    @property
    def front(self) -> Sequence[str]:
        """The confirmed one."""
        return self.steps[-1].front if len(self.steps) > 1 else ()

    def _goes_on(self) -> bool:
        """Decide whether there is another round; all begins anew where trials have finished since the first one."""
        front = front_of(self._folder.info(), self._folder.trials())
        self.steps = [step for step in self.steps if step.finished == len(front.finished)]
        if self.steps and self.steps[-1].ended:
            return False
        step = self._after(front, self.steps[-1]) if self.steps else self._first(front)
        step = replace(step, settings=self._settings, finished=len(front.finished), spent=self._spent())
        self.steps.append(replace(step, late=[*step.trials, *step.baselines]))
        self._folder.write_steps(self.steps)
        return not step.ended

    def _first(self, front: Front) -> Step:
        standing = self._standing(front, [trial for trial in nearest(front) if trial.feasible])
        if standing is None:
            return Step(ended="no trial has sums of its predictions")
        names = standing.candidates(self._top)
        best = pareto.front([values_of(record) for record in front.baselines], front.goals) if front.baselines else []
        baselines = [front.baselines[place].name for place in best]
        first, budget = self._plan.rounds[0].edges, self._budget()
        images = first[1] - first[0] if first else 0
        while len(names) > 2 and self._price([*names, *baselines], images) > budget:
            names.pop()
        while images >= 2 * LEAST and self._price([*names, *baselines], images) > budget:
            images //= 2
        places = [standing.names.index(name) for name in names]
        return self._step(Standing(names, standing.better[:, places]), Step(baselines=baselines, images=images))

    def _after(self, front: Front, last: Step) -> Step:
        ran = [name for name in last.trials if name not in last.late]
        standing = self._standing(front, [trial for trial in front.trials if trial.name in ran], CONFIRMED)
        if last.late and (standing is None or len(standing.names) < 2):  # with nobody to compare: as it was before
            known = last if len(self.steps) > 1 else Step()
            return replace(known, trials=(), baselines=(), left=(), seconds=0.0, ended=SPENT)
        if standing is None:
            return Step(left=ran, ended="no trial has a result")
        return self._step(standing, last, [name for name in ran if standing.support.get(name, 0.0) < UNLIKELY])

    def _step(self, standing: Standing, last: Step, left: Sequence[str] = ()) -> Step:
        support, names = standing.support, [name for name in standing.names if name not in left]
        step = replace(last, support=support, regret=standing.regret, best=standing.best, front=standing.front)
        seconds = self._price([*names, *last.baselines], last.images)
        if ended := SPENT if last.late else self._over(standing.regret, seconds):
            return replace(step, left=left, trials=(), baselines=(), seconds=0.0, ended=ended)
        trials = sorted(names, key=lambda name: abs(support[name] - 0.5))
        return replace(step, left=left, trials=trials, seconds=seconds)

    def _over(self, regret: Sequence[float], seconds: float) -> str:
        """Why there is no other round, which would take so many seconds."""
        if self.steps and max(regret) < ENOUGH:
            return f"the expected regret is under {ENOUGH} points in every objective"
        if len(self.steps) == len(self._plan.rounds):
            return "no round is left"
        if self._taken() + seconds > self._budget():
            return f"{'another' if self.steps else 'a'} round would go beyond a quarter of the search's device time"
        return ""

    def _standing(self, front: Front, trials: Sequence[TrialRecord], also: str = "") -> Standing | None:
        found = of_split(self._folder.artifacts, trials, self._split, self._stems, also=also)
        if found is None:
            return None
        there = [trial for trial in trials if trial.name in found.places]
        points = [100 / ADDITIVE[metric.partition("/")[0]].scale for metric in self._metrics]
        return Standing([trial.name for trial in there], signed(front, found, there) * np.array(points)[:, None, None])

    def _records(self, split: str) -> dict[str, TrialRecord]:
        return {record.name: record for record in self._folder.trials() if split in record.results}

    def _price(self, names: Sequence[str], images: int) -> float:
        """Of the next round, at the pace of those so far."""
        expected, number = math.fsum(step.seconds for step in self.steps), len(self.steps)
        rounds = self._rounds(images)
        pair = [Round((), ()), *rounds, rounds[-1]][number : number + 2]  # after the last nothing more
        seconds = price(self._records(self._split), names, self._plan, self._split, pair)
        return seconds * (self._taken() / expected if expected else 1.0)

    def _spent(self) -> float:
        """Seconds on a device, of all that ever was run again."""
        return math.fsum(one.results[CONFIRMED].device_seconds for one in self._records(CONFIRMED).values())

    def _taken(self) -> float:
        """The same since the first decision: if all has begun anew, what ran before was at hand."""
        return self._spent() - self.steps[0].spent if self.steps else 0.0

    def _is_spent(self, running: int) -> bool:
        """Whether nobody more may begin; whoever runs is taken at a share of what the round is expected to take."""
        last = self.steps[-1]
        share = last.seconds / (len(last.trials) + len(last.baselines))
        return self._taken() + running * share >= self._budget()

    def _searched(self) -> float:
        """Seconds of the search on a device; of results that were at hand, what adapting took then."""
        seeds, split, held = len(self._plan.seeds), self._split, math.fsum(one.held for one in self._folder.trials())
        found = [(one.results[split], _seconds(one, split, "adapt")) for one in self._records(split).values()]
        return held + math.fsum(max(result.device_seconds, seeds * adapt) for result, adapt in found)

    def _budget(self) -> float:
        return SHARE * self._searched()

    def told(self) -> str:
        """What came of it, in a line."""
        last = self.steps[-1] if self.steps else Step()
        ended = last.ended or "the sweep was stopped"
        if len(self.steps) < 2 or not last.best:
            return f"nothing: {ended}"
        done = self._rounds(last.images)[len(self.steps) - 2]
        more = plural(len(set(done.seeds) - set(self._plan.seeds)), "more seed")
        share = self._spent() / (self._searched() or 1.0)
        regrets = zip(self._metrics, self.steps[0].regret, last.regret, strict=False)
        left = ", ".join(name for step in self.steps for name in step.left)
        late = ", ".join(name for step in self.steps[:-1] for name in step.late)
        parts = [
            f"on {fresh(done)}{f' with {more}' * (more[0] != '0')}: {'; '.join(self._values(last.best))}",
            f"expected regret {', '.join(f'{metric} {old:.2f} -> {new:.2f}' for metric, old, new in regrets)} points",
            f"{plural(len(self.steps) - 1, 'round')}, {share:.0%} of the search's device time",
            *([f"left: {left}"] if left else []),
            *([f"not begun in the last round: {late}"] if late else []),
            f"ended as {ended}",
        ]
        return "; ".join(parts)

    def _values(self, best: Sequence[str]) -> Iterator[str]:
        """Of the best at each objective, on what is fresh alone."""
        records = [self._folder.trial(name) for name in dict.fromkeys(best)]
        found = of_split(self._folder.artifacts, records, CONFIRMED, self._stems)
        for record in records:
            values = []
            for metric, name in zip(self._metrics, best, strict=True):
                value = format_metric(metric, metric_of(record.results[CONFIRMED], metric))
                known = found.interval(record.name, metric) if found else ""
                if not isinstance(known, str):
                    value += f" [{format_metric(metric, known.low)}, {format_metric(metric, known.high)}]"
                values.append(f"{'best ' * (name == record.name)}{metric} {value}")
            yield f"{record.name} {', '.join(values)}"
