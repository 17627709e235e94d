"""The launcher: csrun_wse, csrun_cpu, the admin shell. Imports no TensorFlow and starts in well under half a second."""
