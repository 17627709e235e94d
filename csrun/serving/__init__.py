"""`cs-system serve`: one process that makes jobs and systems available to other hosts."""
