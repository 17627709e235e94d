"""The simulated CS-2: its figures, its state, its queue of jobs. Shared by the launcher and the run."""
