"""Checkpoints in HDF5. Import nothing here: h5py is slow to load, so only opening a file loads it."""
