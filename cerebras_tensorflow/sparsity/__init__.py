"""Weight sparsity: which weights are zero, and when that changes. The names are those of the published 2.x releases.

The package works on NumPy arrays and does not import TensorFlow. `estimator/model/sparse_weights.py` masks the graph of
a training step, and `estimator/training/sparsity/hook.py` makes and changes the masks of a run.
"""

from cerebras_tensorflow.sparsity.algorithms import GMP, SET, DynamicSparsityAlgorithm, RigL, SparsityAlgorithm, Static
from cerebras_tensorflow.sparsity.configure import Group, SparseGroups, configure

__all__ = [
    "GMP",
    "SET",
    "DynamicSparsityAlgorithm",
    "Group",
    "RigL",
    "SparseGroups",
    "SparsityAlgorithm",
    "Static",
    "configure",
]
