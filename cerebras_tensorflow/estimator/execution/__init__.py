"""Where and how a graph runs: the system, the compiled program, the weight store."""
