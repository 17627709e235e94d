"""All our errors, as one tree. A caller's mistake stays a ValueError or TypeError.

CerebrasError
+-- SettingsError          a settings file or option we cannot accept (also a ValueError)
|   +-- MissingDataError   input files do not exist
+-- CompileError           a graph that the requested mode cannot run
|   +-- MemoryBudgetError  a step that does not fit into memory_budget
|   +-- PlacementError   a model that does not fit on the simulated wafer
+-- SystemStateError       the state of the simulated CS-2 forbids the request
|   +-- ExecModeError      it is in the other execution mode
|   +-- SystemNotFoundError  nothing answers at that address
+-- CheckpointError        a checkpoint that cannot be read or written
|   +-- CorruptCheckpointError  it exists, but is truncated or damaged
+-- StoreError             the weight store cannot hold or return a weight
|   +-- FolderInUseError   another run uses its folder
+-- CollectiveError        a rank of a run on several CSX failed or does not answer
"""


class CerebrasError(Exception):
    """Base of all errors that this library raises on purpose."""


class SettingsError(CerebrasError, ValueError):
    """A setting that is unknown, of the wrong type or out of range."""


class MissingDataError(SettingsError):
    """Input files do not exist.

    Attributes:
        element_spec: Dataset.element_spec of the missing input; None if only the files could tell.
    """

    def __init__(self, message: str, element_spec: object = None) -> None:
        super().__init__(message)
        self.element_spec = element_spec


class CompileError(CerebrasError):
    """A graph that cannot be turned into a Program for the requested mode."""


class MemoryBudgetError(CompileError):
    """A step that does not fit into the memory budget.

    Attributes:
        needed_bytes: The smallest budget that it fits into.
    """

    def __init__(self, message: str, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class PlacementError(CompileError):
    """A model that does not fit on the wafer of the simulated CS-2."""


class SystemStateError(CerebrasError):
    """The state of the simulated CS-2 forbids the request."""


class ExecModeError(SystemStateError):
    """The simulated CS-2 is configured for the other execution mode."""


class SystemNotFoundError(SystemStateError):
    """No simulated CS-2 answers at the given address."""


class CheckpointError(CerebrasError):
    """A checkpoint that cannot be read, written or found."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint that exists but is truncated or damaged."""


class StoreError(CerebrasError):
    """A weight that the weight store cannot hold or return."""


class FolderInUseError(StoreError):
    """Another run uses the folder of a weight store or of the processes of several CSX."""


class CollectiveError(CerebrasError):
    """A rank of a run on several CSX failed, or does not answer."""
