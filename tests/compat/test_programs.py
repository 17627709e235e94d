"""Public packages that build on tf.estimator run unmodified; docs/programs-tried.md has the list."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import cerebras_tensorflow

ROOT = Path(cerebras_tensorflow.__file__).parents[1]
PROGRAMS = Path(__file__).parent / "programs"
START = """
import sys, runpy
sys.path[:0] = sys.argv[1].split(":")
import cerebras_tensorflow_autoload
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_PROBABILITY = ("tensorflow-probability==0.25.0", "dm-tree", "decorator", "cloudpickle")
_SCIENCE = ("scipy", "scikit-learn", "joblib", "threadpoolctl")
_WANDB = (
    *(
        "click",
        "platformdirs",
        "requests",
        "urllib3",
        "idna",
        "certifi",
        "charset-normalizer",
        "sentry-sdk",
        "GitPython",
    ),
    *(
        "gitdb",
        "smmap",
        "pydantic",
        "pydantic-core",
        "annotated-types",
        "typing-inspection",
        "importlib-metadata",
        "zipp",
    ),
    *("opentelemetry-api", "opentelemetry-sdk", "opentelemetry-semantic-conventions", "typing-extensions"),
)
PACKAGES = {
    "adanet_ensemble": ("adanet==0.9.0",),
    "constrained_rates": ("tensorflow-constrained-optimization==0.2", "scipy"),
    "datasets_builder": (
        *("tensorflow-datasets==4.9.4", "tensorflow-metadata", "array-record", "etils", "importlib-resources", "zipp"),
        *("promise", "toml", "tqdm", "psutil", "click", "dill", "dm-tree", "fsspec", "typing-extensions", "absl-py"),
        "googleapis-common-protos",
    ),
    "deepctr_deepfm": ("deepctr==0.9.4",),
    "edward_layers": ("edward2==0.0.2", *_PROBABILITY),
    "gan": ("tensorflow-gan==2.1.0", "tensorflow-hub==0.16.1", "setuptools<81", *_PROBABILITY),
    "gin_hook": ("gin-config==0.5.0",),
    "hub_exporter": ("tensorflow-hub==0.15.0", "setuptools<81"),
    "kfac_optimizer": ("kfac==0.2.4", *_PROBABILITY),
    "lattice_classifier": ("tensorflow-lattice==2.0.13", "graphviz", *_SCIENCE),
    "lime_rows": (
        *("lime==0.2.0.1", "scikit-image", "matplotlib", "pillow", "networkx", "tqdm", "narwhals", "cloudpickle"),
        *_SCIENCE,
    ),
    "mesh_mlp": ("mesh-tensorflow==0.1.21", "gin-config", "future"),
    "nsl_adversarial": ("neural-structured-learning==1.4.0", "scipy"),
    "official_hooks": ("tf-models-official==2.2.2", "requests", "urllib3", "idna", "certifi", "charset-normalizer"),
    "privacy_dnn": (
        *("tensorflow-privacy==0.9.0", "dp-accounting==0.4.3", "mpmath", "immutabledict"),
        *(*_SCIENCE, *_PROBABILITY),
    ),
    "probability_vae": _PROBABILITY,
    "ranking_dnn": ("tensorflow-ranking==0.5.5",),
    "recommenders_wide_deep": ("recommenders==1.2.1",),
    "sacred_run": (
        *("sacred==0.8.7", "docopt", "jsonpickle", "munch", "wrapt", "py-cpuinfo", "colorama", "packaging"),
        *("GitPython", "gitdb", "smmap", "setuptools<81"),
    ),
    "shap_rows": (
        *("shap==0.51.0", "slicer", "numba", "llvmlite", "cloudpickle", "tqdm", "packaging", "narwhals"),
        *("typing-extensions", *_SCIENCE),
    ),
    "slim_convolutions": ("tf-slim==1.1.0",),
    "spleeter_unet": ("spleeter==2.4.2", "norbert==0.2.1"),
    "wandb_hook": ("wandb==0.31.0", *_WANDB),
}
"""Script -> the packages that it needs beside TensorFlow, pandas and what this package installs."""


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.parametrize("script", PACKAGES)
def test_a_public_package_runs_unmodified(tmp_path: Path, script: str) -> None:
    """The script trains, evaluates, predicts and exports under plain python; the start-up hook loads our package."""
    folder = tmp_path / "packages"
    packages = PACKAGES[script]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *packages]
    installed = subprocess.run(pip, capture_output=True, text=True)
    if installed.returncode != 0:
        pytest.skip(f"{packages[0]} cannot be installed here: {installed.stderr[-300:]}")
    hook = ROOT / "cerebras_tensorflow" / "compat" / "roots" / "autoload"
    path = ":".join(map(str, (folder, hook, ROOT, sysconfig.get_paths()["purelib"], PROGRAMS)))
    environ = {name: value for name, value in os.environ.items() if name not in ("TF_USE_LEGACY_KERAS", "PYTHONPATH")}
    environ.update(CEREBRAS_HOME=str(tmp_path / "home"), TF_CPP_MIN_LOG_LEVEL="3")
    words = [sys.executable, "-W", "ignore", "-c", START, path, str(PROGRAMS / f"{script}.py"), str(tmp_path / "model")]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    first_words = [line.split(" ")[0] for line in done.stdout.splitlines()]  # deepctr adds a line if it is offline
    assert [word for word in first_words if word.isupper()] == ["METRICS", "ROW", "EXPORT"], done.stdout
