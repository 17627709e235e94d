"""The packages; everything else is in pyproject.toml. `cerebras_appliance` is a package of old scripts' imports."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["cerebras_tensorflow*", "csrun*"]), "cerebras_appliance"],
    package_dir={"cerebras_appliance": "cerebras_tensorflow/compat/roots/wheel/cerebras_appliance"},
)
