"""Small disks for tests of full or read-only file systems."""

import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def mounted(folder, options):
    """Mount a file system in memory at a new folder; `options` are those of mount. Skip the test without root."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False).returncode:
        pytest.skip("needs root, to mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
