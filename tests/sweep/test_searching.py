"""The context that the trials of a search get."""

from types import SimpleNamespace

from fpp_sweep.sweep import searching
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.opening import OpenedSweep
from tests.kit.spaces import small_space


def test_trials_get_the_plans_of_the_search_and_of_the_final_stage(monkeypatch):
    started = []
    monkeypatch.setattr(searching, "run_tune", lambda *arguments: started.append(arguments))
    opened = OpenedSweep(
        pool="pool", plan="of the search", later_plans={"final": "of the final stage"}, gpus_per_worker=0.0
    )
    space = small_space()
    folder = SimpleNamespace()
    searching.run_search("searcher", space, folder, opened, Options(plugins=("plugin",)), "tune")
    ((searcher, context, tune_folder),) = started
    assert (searcher, tune_folder) == ("searcher", "tune")
    assert (context.folder, context.executor) == (folder, "pool")
    assert (context.plan, context.later_plans) == ("of the search", {"final": "of the final stage"})
    assert (context.objectives, context.constraints) == (space.objectives, space.constraints)
    assert (context.search_split, context.plugins) == ("val", ("plugin",))
