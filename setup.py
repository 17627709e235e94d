"""The packages; everything else is in pyproject.toml. Two packages stand below cerebras_tensorflow/compat/roots.

`cerebras_appliance` has names that old scripts import. The .pth file that is written here imports
`cerebras_tensorflow_autoload` when Python starts: scripts that do not know us then find tf.estimator.
"""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

# If the package is missing or damaged, Python would report the line of the .pth file at each start of a program.
HOOK = r"""exec("try:\n import cerebras_tensorflow_autoload\nexcept Exception:\n pass")"""


class BuildWithHook(build_py):
    """Build the packages, and the .pth file of the start-up hook beside them."""

    def run(self):
        """Build."""
        super().run()
        if not self.editable_mode:
            path = Path(self.build_lib, "cerebras_tensorflow_autoload.pth")
            path.write_text(f"import sys; {HOOK}\n", encoding="utf-8")


ROOTS = "cerebras_tensorflow/compat/roots"
setup(
    packages=[
        *find_packages(include=["cerebras_tensorflow*", "csrun*"]),
        "cerebras_appliance",
        "cerebras_tensorflow_autoload",
    ],
    package_dir={
        "cerebras_appliance": f"{ROOTS}/wheel/cerebras_appliance",
        "cerebras_tensorflow_autoload": f"{ROOTS}/autoload/cerebras_tensorflow_autoload",
    },
    cmdclass={"build_py": BuildWithHook},
)
