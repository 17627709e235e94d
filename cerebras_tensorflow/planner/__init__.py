"""What training a model would take, from its shapes alone: no weight is made, no step is run."""
