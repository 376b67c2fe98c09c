"""MLflow's copy of a sweep: `runs` computes it, `delivery` writes what differs, `stores` checks and opens stores."""
