"""Lists the live nodes of a cluster, as a shell on one of its machines sees them."""

import json

ASK = """python -c 'import json, ray; ray.init("auto", logging_level="ERROR", log_to_driver=False)
print("nodes", json.dumps([node for node in ray.nodes() if node["Alive"]]))'"""


def alive(machine):
    """Return Ray's nodes, as a shell on one of the nodes lists them; none while no node answers."""
    lines = machine.try_(f". ~/.bashrc; {ASK}").stdout.splitlines()  # Ray's warnings may be among them
    answers = [line.removeprefix("nodes ") for line in lines if line.startswith("nodes ")]
    return json.loads(answers[-1]) if answers else []
