"""The simulated CS-2: its hardware figures, its state, and its queue of jobs. The launcher and the run share them."""
