"""The command line: flags, messages and exit codes that all commands share."""
