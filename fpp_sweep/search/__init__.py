"""The choice of trials, and the processes in which Ray Tune runs them."""
