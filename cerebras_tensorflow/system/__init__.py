"""The simulated CS-2: its state, its limits and its published figures."""
