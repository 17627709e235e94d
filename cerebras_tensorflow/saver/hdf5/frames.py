"""What the process that runs libhdf5 sends: frames of a kind, a size, and that many bytes."""

from __future__ import annotations

import struct

FRAME = struct.Struct("<4sQ")  # kind, and size of what follows
READY, JSON, DATA, DONE, FAILED = b"REDY", b"JSON", b"DATA", b"DONE", b"FAIL"
