"""CerebrasAppEstimator: the estimator of the appliance (1.6 to 1.8). Its config sets the execution mode."""

from __future__ import annotations

from cerebras_tensorflow.compat import activate
from cerebras_tensorflow.estimator.estimator import CerebrasEstimator

activate.old_script()


class CerebrasAppEstimator(CerebrasEstimator):
    """CerebrasEstimator under the name that releases 1.6 to 1.8 use.

    With use_cs it runs on the simulated system, in the mode that config.execution_mode gives. Without use_cs it runs on
    the CPU.
    """
