"""States that the published PyTorch writers and we exchange: nested alike on both sides. Needs the package index."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.saver import torch_state

pytestmark = pytest.mark.interop
torch = pytest.importorskip("torch")


# Both sides describe a state with this: containers, types and exact values.
_DESCRIBE = """
import numpy as np, torch

def described(value):
    if "Deferred" in type(value).__name__ and not isinstance(value, torch.Tensor):
        value = value.value
    if isinstance(value, dict):
        return [type(value).__name__, [[key, described(child)] for key, child in value.items()]]
    if isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        return [type(value).__name__, [described(child) for child in value]]
    if isinstance(value, torch.Tensor):
        value = value.to("cpu").contiguous()
        return ["tensor", str(value.dtype), list(value.shape), value.to(torch.float64).reshape(-1).tolist()]
    if isinstance(value, (np.ndarray, np.generic)):
        value = np.asarray(value)
        return ["numpy", value.dtype.name, list(value.shape), value.tobytes().hex()]
    return [type(value).__name__, repr(value)]
"""

# The writer's native library needs another torch; saving and loading do not need it.
_PEER_SETUP = """
import sys, types, warnings
warnings.simplefilter("ignore")

class Inert(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(name)
    def __call__(self, *args, **kwargs):
        return Inert("result")

sys.modules["cerebras.pytorch.lib.cerebras_pytorch_lib"] = Inert("cerebras_pytorch_lib")
import cerebras.pytorch.lib
cerebras.pytorch.lib.cerebras_pytorch_lib = sys.modules["cerebras.pytorch.lib.cerebras_pytorch_lib"]
import cerebras.pytorch as cstorch
"""

_STATE = """
import collections
shared = torch.full((3,), 0.25)
state = {
    "a": {"b": 0.1, 3: 7}, "d": [1, (2.5, None, "text"), []], "e": {}, "t": (),
    "model": {"w": torch.arange(6.0).reshape(2, 3), "half": torch.ones(2, dtype=torch.bfloat16), "s": torch.tensor(3)},
    "dotted.name": {"x.y": torch.ones(1, dtype=torch.bool)},
    "n": np.arange(3, dtype=np.int16), "n0": np.array(5.0, np.float32), "empty": np.zeros((0, 3)),
    "big": 2**70, "inf": float("-inf"), "flag": True, "text": "h\\u00e9", "none": None,
    "order": collections.OrderedDict(b=1, a=torch.ones(2)), "set": {1}, "queue": collections.deque([1, 2]),
    "shared": [shared, shared], "complex": 1 + 2j, "c": np.array([1j, 2]), "size": torch.Size([2, 3]),
    "types": [torch.float32, torch.bfloat16, np.dtype("f4"), np.float32],
    "scalars": [np.float32(1.5), np.int64(-7), np.bool_(True), np.complex64(1j), np.float16(2), np.uint8(3)],
    "bytes": b"ab", "frozen": frozenset([1]), "unknown": torch.device("cpu"), "last": slice(1, 2),
}
"""

_SAVE = """
import json
path, form = sys.argv[1:]
if form == "current":
    cstorch.save(state, path)
else:
    # Release 2.0 to 2.4; the wheel reads such files, and writes them no more.
    import dill, h5py, urllib.parse
    del state["set"], state["queue"], state["size"], state["types"][3]
    from cerebras.pytorch.utils.nest import recurse_spec
    leaves, spec = torch.utils._pytree.tree_flatten(state)
    with h5py.File(path, "w") as file:
        file.attrs["__version__"], file.attrs["__cstorch_version__"] = 0.4, "2.0.0"
        file.attrs["__spec__"] = dill.dumps(spec).hex()
        for scope, value in zip(recurse_spec(spec), leaves):
            name, extra = urllib.parse.quote(".".join(scope), safe=""), {}
            if isinstance(value, torch.Tensor):
                kind, extra = "TorchTensorH5Type", {"is_bfloat16": value.dtype == torch.bfloat16}
                value = (value.view(torch.int16) if extra["is_bfloat16"] else value).numpy()
            elif isinstance(value, (np.ndarray, np.number)):
                kind, extra = "NumpyArrayH5Type", {"is_bfloat16": False}
            elif isinstance(value, (bool, int, float)) and abs(value) not in (2**70,):
                kind = "ScalarH5Type"
            elif isinstance(value, str):
                kind, extra, value = "StringH5Type", {"string_value": value}, h5py.Empty("f")
            elif value is None:
                kind, value = "NoneH5Type", h5py.Empty("f")
            else:
                kind, extra, value = "ObjectH5Type", {"object_value": dill.dumps(value).hex()}, h5py.Empty("f")
            dataset = file.create_dataset(name, data=value)
            dataset.attrs.update({"__H5_TYPE__": kind, **extra})
loaded = cstorch.load(path)
print(json.dumps(described(loaded)))
"""


def run(published_python: str, code: str, *arguments: object) -> Any:
    words = [published_python, "-c", _PEER_SETUP + _DESCRIBE + code, *map(str, arguments)]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def described(value: Any) -> Any:
    scope: dict[str, Any] = {}
    exec(_DESCRIBE, scope)
    return json.loads(json.dumps(scope["described"](value)))


@pytest.mark.parametrize("form", ["current", "legacy"])
def test_we_nest_a_published_state_as_the_published_load_does(
    tmp_path: Path, published_python: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = run(published_python, _STATE + _SAVE, tmp_path / "c.mdl", form)
    ours = described(torch_state.load(tmp_path / "c.mdl"))
    # Objects that are no plain values are named and left out.
    kept = [pair for pair in theirs[1] if pair[0] not in ("unknown", "last")]
    assert ours == [theirs[0], kept]
    assert "skipped unknown: it calls torch.device, which is not run" in caplog.text
    assert "skipped last: it calls builtins.slice" in caplog.text


def test_the_published_load_nests_states_that_we_save(tmp_path: Path, published_python: str) -> None:
    scope: dict[str, Any] = {"torch": torch, "np": np}
    exec(_STATE, scope)
    state = scope["state"]
    for name in ("set", "queue", "bytes", "frozen", "unknown", "last", "types", "scalars", "complex", "size"):
        del state[name]
    torch_state.save(state, tmp_path / "c.mdl")
    assert described(torch_state.load(tmp_path / "c.mdl")) == described(state)
    theirs = run(
        published_python, "import json\nprint(json.dumps(described(cstorch.load(sys.argv[1]))))", tmp_path / "c.mdl"
    )
    assert theirs == described(state)
