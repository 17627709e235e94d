"""The Estimator: trains, evaluates, predicts and exports a model_fn."""
