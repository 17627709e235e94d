"""Input pipelines that several models share: text, tokens, TFRecord and HDF5 files."""
