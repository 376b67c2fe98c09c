"""A reproduction's folder with links out of it: every command refuses them and leaves their targets alone."""

import pytest

from fpp_sweep.reproduce.page import write_page
from fpp_sweep.reproduce.running import Reproduction
from fpp_sweep.reproduce.selection import Selection
from fpp_sweep.show import main as show
from fpp_sweep.spec.errors import InputError
from tests.reproduce.test_page import reproduction

SECRET = "not for your eyes"


@pytest.fixture
def papers(tmp_path):
    """A reproduction of three tables, beside an empty folder named `outside`."""
    (tmp_path / "outside").mkdir()
    folder = tmp_path / "papers"
    folder.mkdir()
    return reproduction(folder)


def move_out(path):
    """Move a folder out of the reproduction, leave a link to it, and return where it is now."""
    target = path.parent.parent / "outside" / path.name
    path.rename(target)
    path.symlink_to(target)
    return target


def test_results_of_tasks_are_not_stored_outside(papers):
    (papers / "tasks").mkdir()
    move_out(papers / "tasks")
    with pytest.raises(InputError, match=r"papers/tasks: a link leads out of .*papers; remove the link"):
        _ = Reproduction(papers, Selection()).tasks


def test_the_page_shows_nothing_of_a_linked_sweep(papers):
    info_file = move_out(papers / "mine") / "sweep.json"
    info_file.write_text(info_file.read_text().replace('"command": "', f'"command": "{SECRET} '))
    with pytest.raises(InputError, match=r"papers/mine: a link leads out of .*papers; remove the link"):
        show([str(papers), "--page"])
    assert not (papers / "reproduction.html").exists()


def test_a_reproduction_may_be_reached_through_a_link_and_may_hold_links_to_its_own_folders(papers):
    (papers / "mine").rename(papers / "first")
    (papers / "mine").symlink_to("first")
    linked = papers.parent / "linked"
    linked.symlink_to(papers)
    assert 'id="mine"' in write_page(linked).read_text()
    assert Reproduction(linked, Selection()).sweep("mine").has_sweep
