"""Property tests on any machine: what is slow is not wrong. What a command keeps for its user is kept elsewhere."""

import os
import tempfile

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_home = tempfile.TemporaryDirectory(prefix="fpp-config-")
os.environ["XDG_CONFIG_HOME"] = _home.name
