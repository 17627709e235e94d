"""Plans what training a model takes from its shapes alone. It makes no weights and runs no step."""
