"""CerebrasAppEstimator: the estimator of the appliance (1.6 to 1.8), whose config names the execution mode."""

from __future__ import annotations

from cerebras_tensorflow.compat import activate
from cerebras_tensorflow.estimator.estimator import CerebrasEstimator

activate.old_script()


class CerebrasAppEstimator(CerebrasEstimator):
    """A CerebrasEstimator under the name of releases 1.6 to 1.8.

    With use_cs it runs on the simulated system, in the mode of its config's `execution_mode`; else on the CPU.
    """
