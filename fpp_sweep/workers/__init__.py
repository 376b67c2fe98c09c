"""Workers as Ray actors, and the keeper that hands tasks to them."""
