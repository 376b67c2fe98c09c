"""The tool that writes docs/findings.md."""

import pytest

from fpp_sweep.spec.errors import InputError
from tools import findings


def test_a_folder_without_a_finished_table_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no table of a reproduction has finished here"):
        findings.main([str(tmp_path)])
