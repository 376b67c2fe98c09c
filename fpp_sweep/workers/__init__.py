"""Workers as Ray actors, and the scheduler that gives them tasks."""
