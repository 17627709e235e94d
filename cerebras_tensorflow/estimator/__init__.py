"""The Estimator: the only place that knows a whole run."""
