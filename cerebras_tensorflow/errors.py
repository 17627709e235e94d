"""Every error of ours, as one tree. A caller's mistake stays a ValueError or TypeError.

CerebrasError
+-- SettingsError          a settings file or option we cannot accept (also a ValueError)
|   +-- MissingDataError   files of an input are not there
+-- CompileError           a graph that the requested mode cannot run
+-- SystemStateError       the simulated CS-2 is not in a state that allows what was asked
|   +-- ExecModeError      it is in the other execution mode
|   +-- SystemNotFoundError  nothing answers at that address
+-- CheckpointError        a checkpoint that cannot be read or written
|   +-- CorruptCheckpointError  it exists, but is truncated or damaged
+-- StoreError             the weight store cannot hold or return a weight
"""


class CerebrasError(Exception):
    """Base of all errors that this library raises on purpose."""


class SettingsError(CerebrasError, ValueError):
    """A setting that is unknown, of the wrong type or out of range."""


class MissingDataError(SettingsError):
    """Files of an input are not there.

    Attributes:
        element_spec: The batch that they would give, as Dataset.element_spec has it; None where only they would tell.
    """

    def __init__(self, message: str, element_spec: object = None) -> None:
        super().__init__(message)
        self.element_spec = element_spec


class CompileError(CerebrasError):
    """A graph that cannot be turned into a Program for the requested mode."""


class SystemStateError(CerebrasError):
    """The simulated CS-2 is in a state that does not allow the request."""


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
