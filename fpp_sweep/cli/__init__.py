"""The command line: flags, names of sweeps, messages and exit statuses that all commands share."""
