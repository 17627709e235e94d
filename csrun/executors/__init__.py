"""Ways to carry out a LaunchPlan: as local processes, under Slurm, or on paper."""
