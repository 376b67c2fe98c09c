"""Search spaces that are wrong, and what is told about each."""

RANGE = "params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}\n"

# only a file can be wrong like this: in Python they are other types, or arguments that there are not
SHAPES = [
    ("", "x.yaml:1: is empty"),
    ("- a", "x.yaml:1: must be a mapping"),
    ("\nparms: {}", "x.yaml:2: unknown key 'parms', did you mean 'params'?"),
    ("search:\n  trails: 3", "x.yaml:2: unknown key 'search.trails', did you mean 'search.trials'?"),
    ("params:\n  fpp.gamma1:\n    low: 3\n    hihg: 4", "x.yaml:4: unknown key 'params.fpp.gamma1.hihg', did you mean"),
    ("params: {fpp.gamma1: 3}", "x.yaml:1: params.fpp.gamma1: must be a mapping (key: value), got 3"),
    ("params: [fpp.gamma1]", "x.yaml:1: params: must be a mapping (key: value), got a list"),
    (RANGE + "objectives: [{goal: max}]", "x.yaml:2: objectives.0: needs a metric"),
    (RANGE + "search: [trials]", "x.yaml:2: search: must be a mapping (key: value), got a list"),
    (RANGE + "search:", "x.yaml:2: search: must be a mapping (key: value), got nothing"),
]

# so can values that Python builds
VALUES = [
    ("base: {}", "x.yaml:1: has neither params nor a grid"),
    (
        "params:\n  fpp.gama1: [1]",
        "x.yaml:2: params.fpp.gama1: unknown config key 'fpp.gama1', did you mean 'fpp.gamma1'?",
    ),
    ("params:\n  fpp.gamma1:\n    low: 3\n    high: 1", "x.yaml:2: params.fpp.gamma1: low must be < high, got 3 and 1"),
    ("params: {fpp.gamma1: {low: 3, high: 3}}", "x.yaml:1: params.fpp.gamma1: low must be < high, got 3 and 3"),
    ("params: {fpp.gamma1: {low: 1}}", "x.yaml:1: params.fpp.gamma1: needs high, or choices"),
    ("params: {fpp.gamma1: {low: 0, high: 1, log: true}}", "x.yaml:1: params.fpp.gamma1.low: must be > 0 where log"),
    (
        "params: {fpp.gamma1: {low: 1, high: 2, log: 3}}",
        "x.yaml:1: params.fpp.gamma1.log: must be true or false, got 3",
    ),
    (
        "params: {fpp.gamma1: {low: 0, high: 1, step: 0.3}}",
        "x.yaml:1: params.fpp.gamma1.step: must divide high - low = 1",
    ),
    ("params: {fpp.gamma1: {low: 0, high: 1, step: 0}}", "x.yaml:1: params.fpp.gamma1.step: must be > 0, got 0"),
    (
        "params: {fpp.gamma1: {low: 1, high: 2, step: 1, log: true}}",
        "x.yaml:1: params.fpp.gamma1.step: does not go with",
    ),
    ("params: {fpp.draws: {low: 1, high: 4, step: 0.5}}", "x.yaml:1: params.fpp.draws.step: must be a whole number"),
    ("params: {fpp.draws: {low: 1.5, high: 4}}", "x.yaml:1: params.fpp.draws.low: fpp.draws must be a whole number"),
    ("params: {fpp.draws: {low: 0, high: 4}}", "x.yaml:1: params.fpp.draws.low: fpp.draws must be >= 1, got 0"),
    (
        "params: {fpp.gamma1: {low: a, high: 4}}",
        "x.yaml:1: params.fpp.gamma1.low: fpp.gamma1 must be a number, got 'a'",
    ),
    ("params: {fpp.gamma1: {low: .nan, high: 4}}", "x.yaml:1: params.fpp.gamma1.low: fpp.gamma1 must be finite"),
    (
        "params: {adapt.penalty_weight: {low: none, high: 4}}",
        "x.yaml:1: params.adapt.penalty_weight.low: must be a number, got none",
    ),
    ("params: {fpp.noise_shared: {low: 0, high: 1}}", "x.yaml:1: params.fpp.noise_shared: has no range; give choices"),
    ("params: {fpp.gamma1: []}", "x.yaml:1: params.fpp.gamma1: must have at least 1 entry, is empty"),
    ("params: {fpp.class_var: [x1, 0.02]}", "x.yaml:1: params.fpp.class_var.1: 0.02 comes twice"),
    ("params: {fpp.gamma1: {choices: [1], low: 2}}", "x.yaml:1: params.fpp.gamma1.low: does not go with choices"),
    (
        "params: {fpp.start: [rnadom]}",
        "x.yaml:1: params.fpp.start.0: fpp.start: unknown value 'rnadom', did you mean 'random'",
    ),
    ("params: {method: [tptt]}", "x.yaml:1: params.method.0: unknown method 'tptt', did you mean 'tpt'?"),
    ("params: {anchor_prompt: [fpp]}", "x.yaml:1: params.anchor_prompt.0: FPP needs words"),
    ("params: {prompt: [[a]]}", "x.yaml:1: params.prompt.0: must be a single value, got a list"),
    ("base: {fpp.gamma1: 1}\n" + RANGE, "x.yaml:2: params.fpp.gamma1: is fixed in base as well"),
    ("base: {fpp: {gamma1: 1}}\n" + RANGE, "x.yaml:1: base.fpp: must be a single value, got a mapping"),
    ("base: {fpp: 1}\n" + RANGE, "x.yaml:1: base.fpp: write its settings out, such as fpp.gamma1"),
    (
        "base: {views.min_area: 2}\n" + RANGE,
        "x.yaml:1: base.views.min_area: views.min_area must be in (0, views.max_area]",
    ),
    (
        "params: {method: [tpt], fpp.steps: {choices: [1], when: {metod: tpt}}}",
        "x.yaml:1: params.fpp.steps.when.metod: unknown",
    ),
    (
        "params:\n  method: [tpt, otpt]\n  fpp.steps: {choices: [1], when: {method: ctpt}}",
        "x.yaml:3: params.fpp.steps.when.method: can never hold: ctpt is not among tpt, otpt",
    ),
    (
        RANGE.replace("}}", "}, fpp.steps: {choices: [1], when: {fpp.gamma1: 1}}}"),
        "x.yaml:1: params.fpp.steps.when.fpp.gamma1: fpp.gamma1 is a range of real numbers",
    ),
    (
        "params: {method: {choices: [tpt], when: {fpp.steps: 1}}, fpp.steps: {choices: [1], when: {method: tpt}}}",
        "x.yaml:1: params.method: when goes in a circle among method, fpp.steps",
    ),
    (RANGE + "objectives: [acuracy]", "x.yaml:2: objectives.0: unknown metric 'acuracy', did you mean 'accuracy'?"),
    (RANGE + "objectives: [ece, ece]", "x.yaml:2: objectives.1: ece is an objective already"),
    (RANGE + "objectives: [ece, {metric: ece, goal: max}]", "x.yaml:2: objectives.1: ece is an objective already"),
    (RANGE + "objectives: [ece, nll, mce, sce]", "x.yaml:2: objectives: must have at most 3 entries, has 4"),
    (RANGE + "objectives: []", "x.yaml:2: objectives: must have at least 1 entry"),
    (RANGE + "objectives: [{metric: ece, goal: up}]", "x.yaml:2: objectives.0.goal: unknown goal 'up'"),
    (RANGE + "objectives: [seconds/dtd]", "x.yaml:2: objectives.0: 'seconds/dtd' is of a whole trial"),
    (RANGE + "objectives: [ece/]", "x.yaml:2: objectives.0: 'ece/' lacks a dataset after '/'"),
    (RANGE + "constraints: [{metric: ece}]", "x.yaml:2: constraints.0: needs at_least or at_most"),
    (
        RANGE + "constraints: [{metric: ece, at_least: 2, at_most: 1}]",
        "x.yaml:2: constraints.0: at_least must be <= at_most",
    ),
    (
        RANGE + "constraints: [{metric: ece, at_most: 1, baseline: clip}]",
        "x.yaml:2: constraints.0.baseline: unknown baseline",
    ),
    (
        RANGE + "work: {baselines: []}\nconstraints: [{metric: ece, at_most: 1, baseline: tpt}]",
        "x.yaml:3: constraints.0: baseline tpt is not among work.baselines",
    ),
    (
        RANGE + "constraints: [{metric: ece, at_most: 1}, {metric: ece, at_least: 0}]",
        "x.yaml:2: constraints.1: there is a constraint named ece already",
    ),
    (RANGE + "search: {sampler: tpee}", "x.yaml:2: search.sampler: unknown sampler 'tpee', did you mean 'tpe'?"),
    (RANGE + "search: {sampler: grid}", "x.yaml:1: params.fpp.gamma1: is a range, which sampler grid cannot run"),
    (RANGE + "search: {trials: 0}", "x.yaml:2: search.trials: must be >= 1, got 0"),
    (RANGE + "search: {trials: 2.5}", "x.yaml:2: search.trials: must be a whole number, got 2.5"),
    (RANGE + "search: {wall_clock: soon}", "x.yaml:2: search.wall_clock: must be a duration such as 90s"),
    (RANGE + "search: {split: train}", "x.yaml:2: search.split: train can only be evaluated"),
    (RANGE + "work: {seeds: []}", "x.yaml:2: work.seeds: must have at least 1 entry, is empty"),
    (RANGE + "work: {seeds: [1, 1]}", "x.yaml:2: work.seeds.1: 1 comes twice"),
    (RANGE + "work: {seeds: 0}", "x.yaml:2: work.seeds: must be a list, such as [0], got 0"),
    (RANGE + "work: {model: 3}", "x.yaml:2: work.model: must be text, got 3"),
    (RANGE + "work: {gpus_per_worker: -1}", "x.yaml:2: work.gpus_per_worker: must be >= 0, got -1"),
    (RANGE + "work: {gpus_per_worker: 0.001}", "x.yaml:2: work.gpus_per_worker: must be 0 or >= 0.01, got 0.001"),
    (RANGE + "work: {cpus_per_worker: 0.001}", "x.yaml:2: work.cpus_per_worker: must be >= 0.01, got 0.001"),
    (RANGE + "preset: papre", "x.yaml:2: preset: unknown preset 'papre', did you mean 'paper'?"),
    (RANGE + "name: ../up", "x.yaml:2: name: must be letters, digits"),
    (RANGE + "points: [{fpp.gamma1: 20}]", "x.yaml:2: points.0.fpp.gamma1: 20 is outside 0.1..10"),
    (
        RANGE + "points: [{fpp.gamma2: 1}]",
        "x.yaml:2: points.0.fpp.gamma2: unknown parameter 'fpp.gamma2', did you mean",
    ),
    (RANGE + "points: [{}]", "x.yaml:2: points.0: is an empty point"),
    (RANGE + "points: [{fpp.gamma1: 1}, {fpp.gamma1: 1.0}]", "x.yaml:2: points.1: comes twice"),
    (
        "params: {fpp.draws: {low: 1, high: 5, step: 2}}\npoints: [{fpp.draws: 2}]",
        "x.yaml:2: points.0.fpp.draws: 2 is not 1 plus",
    ),
    (
        "params: {method: [tpt, otpt], fpp.steps: {choices: [1], when: {method: tpt}}}\n"
        "points: [{fpp.steps: 1, method: otpt}]",
        "x.yaml:2: points.0: fpp.steps does not exist where method is otpt",
    ),
    ("grid: {fpp.gamma1: [1]}", "x.yaml:1: grid: must be a list"),
    ("grid: [{}]", "x.yaml:1: grid.0: is an empty block"),
    ("grid: [{fpp.gamma: [1]}]", "x.yaml:1: grid.0.fpp.gamma.0: unknown config key 'fpp.gamma', did you mean"),
    ("grid: [{fpp.gamma1: [1, 1.0]}]", "x.yaml:1: grid.0.fpp.gamma1.1: 1.0 comes twice"),
    (
        "grid: [{fpp.gamma1: 1, 'fpp.gamma2, fpp.gamma1': 2}]",
        "x.yaml:1: grid.0.fpp.gamma2, fpp.gamma1: fpp.gamma1 comes twice",
    ),
    (
        "grid: [{'fpp.gamma1, fpp.gamma2': [[1, 2, 3]]}]",
        "x.yaml:1: grid.0.fpp.gamma1, fpp.gamma2.0: must be one value, or 2",
    ),
    (
        "grid: [{fpp.align_distance: none, fpp.flat_distance: none}]",
        "x.yaml:1: grid.0: fpp.align_distance or fpp.flat_dist",
    ),
    ("grid: [{fpp.steps: [1]}]\nsearch: {sampler: tpe}", "x.yaml:2: search.sampler: tpe does not go with a grid"),
    ("grid: [{fpp.steps: [1]}]\n" + RANGE, "x.yaml:2: params: does not go with a grid"),
    (
        "params: {method: [tpt], fpp.steps: {choices: [1], when: {method: tpt}}}\nsearch: {sampler: gp}",
        "x.yaml:1: params.fpp.steps: when does not go with sampler gp",
    ),
    (RANGE + "work:\n  loaders: -1", "x.yaml:3: work.loaders: must be >= 0, got -1"),
    (
        RANGE + "work: {on_bad_image: skp}",
        "x.yaml:2: work.on_bad_image: unknown on_bad_image 'skp', did you mean 'skip'?",
    ),
    (RANGE + "work: {columns: logits}", "x.yaml:2: work.columns: must be a list, such as [logits], got 'logits'"),
    (RANGE + "work: {plugins: [a, a]}", "x.yaml:2: work.plugins.1: 'a' comes twice"),
]
