"""An unpickler for untrusted data with bounded cost: its time and memory are proportional to the size of the pickle.

Subclasses allow only the opcodes and functions that they need.
"""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

# Use the Python implementation: in the C one, five bytes (a memo index) can allocate gigabytes.
_PythonUnpickler: Any = pickle._Unpickler  # noqa: SLF001

# Python does not cache the hash of an integer, so each use of a long one as a key costs its length.
_MAX_KEY_BITS = 64
_MAX_INDEX_DIGITS = 10  # of 2**32 - 1, the largest index of the binary opcodes


class BoundedUnpickler(_PythonUnpickler):
    """Refuses keys, elements and memo indices whose hash could take endless time. Raises pickle.UnpicklingError.

    Subclasses set `dispatch`, with the opcodes that they allow, and `find_class`.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(_PythonUnpickler.dispatch)

    def load_setitem(self) -> None:
        """Set one value of a dict."""
        check_hashed(self.stack[-2])
        super().load_setitem()

    dispatch[pickle.SETITEM[0]] = load_setitem

    def load_setitems(self) -> None:
        """Set values of a dict."""
        for key in self.stack[::2]:
            check_hashed(key)
        super().load_setitems()

    dispatch[pickle.SETITEMS[0]] = load_setitems

    def load_dict(self) -> None:
        """Make a dict."""
        for key in self.stack[::2]:
            check_hashed(key)
        super().load_dict()

    dispatch[pickle.DICT[0]] = load_dict

    def load_frozenset(self) -> None:
        """Make a frozenset."""
        for element in self.stack:
            check_hashed(element, "a set's element")
        super().load_frozenset()

    dispatch[pickle.FROZENSET[0]] = load_frozenset

    def load_put(self) -> None:
        """Store the top of the stack in the memo."""
        self.memo[self._memo_index()] = self.stack[-1]

    dispatch[pickle.PUT[0]] = load_put

    def load_get(self) -> None:
        """Push a value from the memo."""
        index = self._memo_index()
        if index not in self.memo:
            raise pickle.UnpicklingError(f"it uses memo {index} before it is set")
        self.append(self.memo[index])

    dispatch[pickle.GET[0]] = load_get

    def _memo_index(self) -> int:
        """Return the memo index that the pickle has as text. Larger ones could all have the same hash."""
        text = self.readline()[:-1]
        if len(text) > _MAX_INDEX_DIGITS or not text.isdigit():
            raise pickle.UnpicklingError("a memo index that no pickle needs")
        return int(text)


def check_hashed(value: Any, what: str = "a dict's key") -> None:
    """Check a value that will be hashed. Hashing nested tuples or long integers could take endless time.

    Raises:
        pickle.UnpicklingError: If it is not a string, a number of at most 64 bits, or None.
    """
    if not isinstance(value, str | int | float | bool | None):
        raise pickle.UnpicklingError(f"{what} is a {type(value).__name__}; expected a string or a number")
    if isinstance(value, int) and value.bit_length() > _MAX_KEY_BITS:
        raise pickle.UnpicklingError(f"{what} is an integer of {value.bit_length()} bits; at most {_MAX_KEY_BITS}")
