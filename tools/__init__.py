"""Programs for those who develop fpp_sweep; none of them is installed with it."""
