"""The queue of points that run before sampled points, and the budget that commands leave in force."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import Command
from fpp_sweep.records.steering import Queue, budget_in_force
from fpp_sweep.space.work import Search
from tests.kit.records import sweep_info, trial
from tests.kit.spaces import small_space

START, END = ("code", {"fpp.gamma1": 1.0}), ("paper", {"fpp.gamma1": 2.0})
ADDED = {"fpp.gamma1": 3.0}


def test_an_added_point_moves_later_points_of_the_space_back_by_one():
    queue = Queue(points=[START, END], added={1: ADDED})
    assert [queue.at(number) for number in range(4)] == [START, ("added", ADDED), END, None]
    assert len(queue) == 3


def test_points_added_after_the_queue_move_no_other_point():
    queue = Queue(points=[START, END], added={2: ADDED, 5: ADDED})
    assert [queue.at(number) for number in (0, 1, 2, 3, 5)] == [START, END, ("added", ADDED), None, ("added", ADDED)]


def test_a_trial_whose_command_is_lost_stays_an_added_one_and_no_point_of_the_space_is_lost(tmp_path):
    space = small_space("points=[{fpp.gamma1: 1}, {fpp.gamma1: 2}]", "search.include_published=false")
    folder = SweepFolder(tmp_path)
    folder.write_info(replace(sweep_info(), space=space.plain(), objectives=space.objectives))
    folder.write_trial(trial(1, params=ADDED, origin="added"))
    queue = Queue.of(folder, folder.info())
    points = [queue.at(number) for number in range(4)]
    assert points == [("point", {"fpp.gamma1": 1}), ("added", ADDED), ("point", {"fpp.gamma1": 2}), None]


IN_AN_HOUR = f"{datetime.now(UTC) + timedelta(hours=1):%Y%m%d-%H%M%S-%f}"


def test_the_later_of_two_budgets_is_in_force_though_the_first_is_of_a_machine_whose_clock_is_ahead(tmp_path):
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(space=small_space().plain()))
    folder.record_applied(Command(name=f"{IN_AN_HOUR}-1", kind="budget", written=0.0, values={"trials": 40}))
    for trials in (30, 20):
        folder.send_command("budget", {"trials": trials})
    assert [command.values["trials"] for command in folder.commands()] == [40, 30, 20]
    assert budget_in_force(folder.info(), Search(), folder.commands()).trials == 20


@pytest.mark.parametrize("name", ["99991231-235959-999999-1", "any"])
def test_a_name_in_a_received_folder_from_which_no_later_one_follows_keeps_no_command_from_being_sent(tmp_path, name):
    folder = SweepFolder(tmp_path)
    folder.record_applied(Command(name=name, kind="budget", written=0.0, values={"trials": 40}))
    sent = folder.send_command("budget", {"trials": 20})
    assert sent in folder.commands()
