"""Ways to run a LaunchPlan: as local processes or under Slurm; a dry run only prints it."""
