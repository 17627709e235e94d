"""`cs-system serve`: one process that offers jobs and systems to other machines."""
