"""Checkpoints in HDF5. Import nothing here: h5py must load only where a file is opened."""
