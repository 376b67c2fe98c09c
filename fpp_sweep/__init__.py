"""Calibrated test-time prompt tuning of CLIP, as trials that can be searched.

Importing the package loads nothing heavy: torch, open_clip and matplotlib come with the modules that use them.
"""

__version__ = "0.1.0"
