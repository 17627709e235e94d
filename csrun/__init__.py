"""The launcher: csrun_wse, csrun_cpu, python-ws. Never imports TensorFlow."""
