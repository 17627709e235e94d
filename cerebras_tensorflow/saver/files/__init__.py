"""Files below a checkpoint: atomic names, write-back, range copies, maps, checksums."""
