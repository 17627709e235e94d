"""The weight-streaming compiler: choose, order, plan memory, rewrite."""
