"""A list of a Ray cluster's live nodes, made by a shell on one of its machines."""

import json

LIST_NODES = """python -c 'import json, ray; ray.init("auto", logging_level="ERROR", log_to_driver=False)
print("nodes", json.dumps([node for node in ray.nodes() if node["Alive"]]))'"""


def live_nodes(machine):
    """Return Ray's live nodes as the machine lists them, or an empty list while Ray does not answer."""
    lines = machine.run_unchecked(f". ~/.bashrc; {LIST_NODES}").stdout.splitlines()
    answers = [line.removeprefix("nodes ") for line in lines if line.startswith("nodes ")]  # others are Ray's warnings
    if not answers:
        return []
    return json.loads(answers[-1])
