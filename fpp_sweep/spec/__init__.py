"""Values that every part of the package shares: settings, tasks, keys, errors and messages. Imports no torch."""
