"""What the reference implementations share: settings, layers, optimizers, data and the run() helper."""
