"""The files of a checkpoint: atomic names, write-back, range copies, maps, checksums."""
