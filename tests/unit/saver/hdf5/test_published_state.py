"""Nested states of the published PyTorch writers, written here byte by byte; and pickles, of which nothing is run.

tests/integration/checkpoints/test_torch_state_interop.py compares with the published programs.
"""

from __future__ import annotations

import collections
import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver import tf_h5_saver, torch_state
from cerebras_tensorflow.saver.hdf5 import plain_object
from cerebras_tensorflow.saver.hdf5.plain_object import NotPlainError

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def node(kind: str, keys: list[Any] | None, *children: Any) -> dict[str, Any]:
    return {"type": kind, "context": json.dumps(keys), "children_spec": list(children)}


def spec_text(spec: Any) -> str:
    return json.dumps([None, json.dumps([1, spec])])


def write_current(path: Path, spec: Any, leaves: dict[str, dict[str, Any]], **datasets: Any) -> None:
    with h5py.File(path, "w") as file:
        file.attrs.update({"__version__": 0.5, "__SUCCESS__": True, "__spec__": spec_text(spec)})
        for name, metadata in leaves.items():
            key = f"{name}.__metadata__"
            file.attrs[key] = json.dumps({"__spec__": [], "__objects__": [name], key: metadata})
        for name, value in datasets.items():
            file[name.replace("_", ".")] = value


NUMPY = {"__TYPE__": "NumpyArraySerializer", "__NUMPY__": True}


def test_the_current_format_is_nested_with_none_numbers_and_links(tmp_path: Path) -> None:
    spec = node(
        "builtins.dict",
        ["a", 3, "l"],
        node("builtins.dict", ["w", "tied"], LEAF, LEAF),
        LEAF,
        node("builtins.list", None, LEAF, node("builtins.tuple", None), LEAF),
    )
    leaves = {
        "a.w": NUMPY,
        "a.tied": {"__TYPE__": "LinkedObject", "__LINKED__": True, "key": "a.w"},
        "3": {"__TYPE__": "ScalarSerializer", "scalar_value": 2**70},
        "l.0": {"__TYPE__": "NoneSerializer", "__NONE__": True},
        "l.2": {"__TYPE__": "LinkedObject", "__LINKED__": True, "key": "l.0"},
    }
    write_current(tmp_path / "c.mdl", spec, leaves, a_w=np.arange(3.0))
    state = torch_state.load(tmp_path / "c.mdl")
    assert state.pop("a")["tied"].tolist() == [0, 1, 2]
    assert state == {3: 2**70, "l": [None, (), None]}


def test_objects_that_are_not_loaded_are_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    children = (LEAF, node("my.Class", None, LEAF), LEAF, node("builtins.list", None, LEAF))
    spec = node("builtins.dict", ["k", "odd", "gone", "l"], *children)
    leaves = {"k": {"__TYPE__": "ScalarSerializer", "scalar_value": 1.5}, "l.0": {"__TYPE__": "ObjectSerializer"}}
    write_current(tmp_path / "c.mdl", spec, leaves)
    with h5py.File(tmp_path / "c.mdl", "a") as file:
        file["l.0"] = h5py.Empty("f")
        file["l.0"].attrs["__BYTES__"] = np.void(pickle.dumps(Path("x")))
    assert torch_state.load(tmp_path / "c.mdl") == {"k": 1.5, "l": [None]}
    for text in ("skipped odd: a container of type my.Class", "skipped gone: ", "skipped l.0: it calls pathlib."):
        assert text in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[1]",
        spec_text(3),
        spec_text({"type": "builtins.dict"}),
        spec_text(node("builtins.dict", ["a"])),
        "[" * 99_999,
    ],
)
def test_a_damaged_description_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    write_current(tmp_path / "c.mdl", LEAF, {})
    with h5py.File(tmp_path / "c.mdl", "a") as file:
        file.attrs["__spec__"] = text
    with pytest.raises(CorruptCheckpointError, match=r"c\.mdl: the description of its nested state is damaged"):
        torch_state.load(tmp_path / "c.mdl")


def spec_pickle(spec: Any) -> bytes:
    """Return what torch 2.0 to 2.8 pickle for a TreeSpec: an object with a dict of attributes."""
    kind, context, children = spec
    name = b"LeafSpec" if kind is None else b"TreeSpec"
    made = b"ctorch.utils._pytree\n" + name + b"\n)\x81}("
    type_of = b"N" if kind is None else b"cdill._dill\n_load_type\n" + text(kind) + b"\x85R"
    made += text("type") + type_of + text("context") + pickle.dumps(context, 2)[2:-1]
    return made + text("children_specs") + b"](" + b"".join(map(spec_pickle, children)) + b"eub"


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def test_the_legacy_format_is_nested_by_its_pickled_tree(tmp_path: Path) -> None:
    leaf = (None, None, [])
    spec = ("dict", ["a b", "l"], [leaf, ("list", None, [leaf, leaf, ("tuple", None, [leaf, leaf])])])
    with h5py.File(tmp_path / "c.mdl", "w") as file:
        file.attrs.update({"__version__": 0.4, "__spec__": (b"\x80\x02" + spec_pickle(spec) + b".").hex()})
        for name, kind, value, extra in (
            ("a%20b", "NumpyArrayH5Type", np.arange(3), {"is_bfloat16": False}),
            ("l.0", "ScalarH5Type", True, {}),
            ("l.1", "StringH5Type", h5py.Empty("f"), {"string_value": "h\u00e9"}),
            ("l.2.0", "NoneH5Type", h5py.Empty("f"), {}),
            ("l.2.1", "ObjectH5Type", h5py.Empty("f"), {"object_value": pickle.dumps(1 + 2j).hex()}),
        ):
            file[name] = value
            file[name].attrs.update({"__H5_TYPE__": kind, **extra})
    state = torch_state.load(tmp_path / "c.mdl")
    assert state.pop("a b").tolist() == [0, 1, 2]
    assert state == {"l": [True, "h\u00e9", (None, 1 + 2j)]}


def test_a_tree_of_unknown_classes_leaves_the_names_flat(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with h5py.File(tmp_path / "c.mdl", "w") as file:
        file.attrs.update({"__version__": 0.3, "__spec__": pickle.dumps({"a": {"b": 0}}).hex()})
        file["a.b"] = np.arange(2)
        file["a.b"].attrs["__H5_TYPE__"] = "NumpyArrayH5Type"
    assert list(torch_state.load(tmp_path / "c.mdl")) == ["a.b"]
    assert "the names of its values stay flat" in caplog.text


PLAIN = [1 + 2j, np.float32(1.5), np.bool_(True), np.complex64(1j), np.int64(-7), b"ab", frozenset([1])]
PLAIN += [(1, [{"a": None}])]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_are_read_from_a_pickle(value: Any) -> None:
    loaded = plain_object.load(pickle.dumps(value, 4))
    assert type(loaded) is type(value) and loaded == value


@pytest.mark.parametrize("dtype", [np.dtype("f4"), np.dtype(">i2"), np.dtype(bool), np.float32, np.bool_], ids=repr)
def test_element_types_are_read_from_a_pickle(dtype: Any) -> None:
    assert plain_object.load(pickle.dumps(dtype)) == dtype


class Calls:
    def __reduce__(self) -> Any:
        return (print, ("run",))


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Calls()),
        pickle.dumps(Path("x")),
        pickle.dumps(print),
        pickle.dumps(collections.OrderedDict(a=1)),
        pickle.dumps({(1, 2): 3}),
        b"cos\nsystem\n(S'true'\ntR.",
        b"cnumpy\ndtype\n(X\x03\x00\x00\x00V99tR.",
        b"cnumpy\ndtype\n)R.",
        b"cbuiltins\ncomplex\n(cos\nsystem\ncos\nsystem\ntR.",
        b"ctorch.utils._pytree\nTreeSpec\n)\x81.",
        b"ctorch.utils._pytree\nTreeSpec\n(I1\nt\x81.",
        b"\x80\x04r\xff\xff\xff\xff.",
        b"]" + b"".join(b"\x94](h%c" % k + b"h%c" % k + b"e" for k in range(40)) + b".",
        pickle.dumps(1)[:-1],
        b"",
    ],
)
def test_a_pickle_that_is_more_than_plain_values_is_refused_and_nothing_in_it_is_run(
    data: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotPlainError):
        plain_object.load(data)
    assert capfd.readouterr().out == ""


# Tuples of 60 levels, each twice in the next: to print or hash them takes 2^60 steps.
PAIRS = b")" + b"".join(b"q%ch%c\x86" % (k, k) for k in range(60))
LONG = pickle.dumps(1 << 800_000, 2)[:-1] + b"q\x01"
NUM_USES = 10_000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"cnumpy\ndtype\n" + PAIRS + b"\x85R.", "whose name is a tuple"),
        (b"}" + PAIRS + b"Ns.", "key is a tuple"),
        (LONG + b"}" + b"h\x01Ns" * NUM_USES + b"\x86.", "key is an integer of 800001 bits"),
        (LONG + b"}(" + b"h\x01N" * NUM_USES + b"u\x86.", "key is an integer of 800001 bits"),
        (LONG + b"(" + b"h\x01N" * NUM_USES + b"d\x86.", "key is an integer of 800001 bits"),
        (LONG + b"(" + b"h\x01" * NUM_USES + b"\x91\x86.", "element is an integer of 800001 bits"),
        # The hash of each of these indices is 0.
        (b"N" + b"".join(b"p%d\n" % (k * (2**61 - 1)) for k in range(50_000)) + b".", "a memo index"),
        (b"]q\x00h\x00a.", "nested deeper"),
        (b"]" * 1200 + b"a" * 1199 + b".", "nested deeper"),
    ],
    ids=["printed", "pairs", "item", "items", "dict", "set", "memo", "endless", "deep"],
)
def test_a_pickle_that_takes_endless_time_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(NotPlainError, match=message):
        plain_object.load(data)


def dict_spec(context: bytes, kind: bytes = b"collections\ndefaultdict\n") -> bytes:
    """Return the pickled tree of a dict of one leaf, with any context, as torch since 2.9 writes it."""
    leaf = b"ctorch.utils._pytree\nLeafSpec\n)\x81"
    return b"ctorch.utils._pytree\nTreeSpec\n)\x81](c" + kind + context + b"](" + leaf + b"eeb."


FACTORY = b"cbuiltins\nint\n"


@pytest.mark.parametrize(
    "tree",
    [
        dict_spec(FACTORY + b"](" + PAIRS + b"e\x86"),
        dict_spec(FACTORY + b"}X\x01\x00\x00\x00k" + PAIRS + b"s\x86"),
        dict_spec(b"](" + PAIRS + b"e", b"builtins\ndict\n"),
        dict_spec(b"](" + pickle.dumps(1 << 80_000, 2)[2:-1] + b"e", b"builtins\ndict\n"),
        dict_spec(FACTORY + PAIRS + b"\x86"),
    ],
    ids=["key", "value", "dict", "long", "keys"],
)
def test_keys_of_a_pickled_tree_are_checked_before_they_are_printed(tmp_path: Path, tree: bytes) -> None:
    with h5py.File(tmp_path / "c.mdl", "w") as file:
        file.attrs.update({"__version__": 0.4, "__spec__": tree.hex()})
    with pytest.raises(CorruptCheckpointError, match="keys do not fit"):
        torch_state.load(tmp_path / "c.mdl")


def test_a_long_name_that_a_pickled_tree_repeats_is_refused(tmp_path: Path) -> None:
    """A key of 10 000 characters, and under it lists of 20 levels, each twice in the next: 10 GB of names."""
    made = b"ctorch.utils._pytree\nTreeSpec\n)\x81"
    tree = b"ctorch.utils._pytree\nLeafSpec\n)\x81q\x00"
    for level in range(20):
        own, below = bytes([level + 1]), bytes([level])
        tree += made + b"](cbuiltins\nlist\nN](h" + below + b"h" + below + b"eebq" + own
    root = made + b"](cbuiltins\ndict\n](" + text("k" * 10_000) + b"e](h\x14eeb."
    with h5py.File(tmp_path / "c.mdl", "w") as file:
        file.attrs.update({"__version__": 0.4, "__spec__": (tree + root).hex()})
    with pytest.raises(CorruptCheckpointError, match="a tree that no state has"):
        torch_state.load(tmp_path / "c.mdl")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("ScalarSerializer", np.arange(3)),
        ("StringSerializer", 7),
        ("StringSerializer", b"\xff\xfe"),
        ("StringSerializer", np.array([b"a", b"b"])),
    ],
    ids=["three scalars", "a number", "not UTF-8", "two texts"],
)
def test_a_leaf_that_does_not_fit_its_kind_is_named(tmp_path: Path, kind: str, value: Any) -> None:
    write_current(tmp_path / "c.mdl", node("builtins.dict", ["a"], LEAF), {"a": {"__TYPE__": kind}}, a=value)
    with pytest.raises(CorruptCheckpointError, match=r"c\.mdl: the value 'a' is damaged"):
        torch_state.load(tmp_path / "c.mdl")


def test_a_set_of_arrays_is_loaded_as_a_list(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A set can have torch tensors, but no NumPy arrays."""
    spec = node("builtins.dict", ["s"], node("builtins.set", None, LEAF))
    write_current(tmp_path / "c.mdl", spec, {"s.0": NUMPY}, s_0=np.arange(2))
    assert [value.tolist() for value in torch_state.load(tmp_path / "c.mdl")["s"]] == [[0, 1]]
    assert "a set of arrays is loaded as a list" in caplog.text


@pytest.mark.parametrize("structure", ["[", "3", '["d", 3]', '["a", "gone"]', '["d", [[["k"], ["v", 1]]]]', "[" * 9999])
def test_a_damaged_structure_of_our_own_is_an_error_that_names_the_file(tmp_path: Path, structure: str) -> None:
    tf_h5_saver.save(tmp_path / "c.h5", {"__structure__": structure})
    with pytest.raises(CorruptCheckpointError, match=r"c\.h5: '__structure__' does not describe its tensors"):
        torch_state.load(tmp_path / "c.h5")
