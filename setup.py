"""Package metadata and the commands that an installation puts on PATH."""

from pathlib import Path

from setuptools import find_packages, setup

COMMANDS = [
    "csrun_wse = csrun.cli:csrun_wse",
    "csrun_cpu = csrun.cli:csrun_cpu",
    "cs_input_analyzer = csrun.input_analyzer:cs_input_analyzer",
    "python-ws = csrun.interpreters:python_ws",
    "cs = csrun.shell.cli:main",
    "cs-system = csrun.system_cli:main",
    "cs-plan = cerebras_tensorflow.planner.cli:main",
    "csctl = csrun.csctl.cli:main",
    "tensorflow-to-h5 = cerebras_tensorflow.saver.cli:tensorflow_to_h5",
    "convert_checkpoint = cerebras_tensorflow.converter.cli:main",
    "h5-to-tensorflow = cerebras_tensorflow.saver.cli:h5_to_tensorflow",
    "cs-checkpoint = cerebras_tensorflow.saver.cli:inspect",
]

SSH = ["asyncssh>=2.17"]
TEST = [
    *SSH,
    "pytest>=8",
    "pandas>=2",
    "hypothesis>=6",
    "pexpect>=4.9",
    "tokenizers>=0.15",
    "psutil>=5.9",
    "ruff>=0.6",
    "mypy>=1.11",
    "import-linter>=2",
    "types-PyYAML",
    "types-protobuf",
    "types-tabulate",
    "matplotlib>=3.8",
]
PICTURES = ["matplotlib>=3.8"]
INTEROP = ["torch>=2.2", "transformers>=4.45", "datasets>=2.14"]
# For scripts/train_tokenizer.py and scripts/convert_dataset_to_hdf5.py.
DATA = ["tokenizers>=0.15", "datasets>=2.14"]

setup(
    name="cerebras_tensorflow",
    version="0.1.0",
    description="An open-source port of the Cerebras TensorFlow-Estimator stack on a simulated CS-2",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=[*find_packages(include=["cerebras_tensorflow*", "csrun*"]), "cerebras_appliance"],
    package_dir={"cerebras_appliance": "cerebras_tensorflow/compat/roots/wheel/cerebras_appliance"},
    package_data={
        "cerebras_tensorflow": ["**/*.md", "**/*.proto", "py.typed", "compat/roots/**/*.py"],
        "csrun": ["**/*.md", "**/*.proto", "py.typed"],
    },
    install_requires=[
        "tensorflow>=2.16,<2.22",
        "tf_keras>=2.16,<2.22",
        "h5py>=3.10",
        "numpy>=1.26",
        "pyyaml>=6",
        "absl-py>=2",
        "google-crc32c>=1.5",
        "prompt_toolkit>=3.0",
        "grpcio-tools>=1.60",
        "ml_dtypes>=0.3.1",
        "hdf5plugin>=4.3",
        "lz4>=4",
        "tabulate>=0.9",
    ],
    extras_require={
        "gpu": ["tensorflow[and-cuda]>=2.16,<2.22"],
        "data": DATA,
        "interop": INTEROP,
        "pictures": PICTURES,
        "ssh": SSH,
        "test": TEST,
    },
    entry_points={"console_scripts": COMMANDS},
)
