"""What pyproject.toml can't say of the build: a .pth file at the root of site-packages, and the loops in C.

Without a compiler the wheel is built all the same: store_client/native.py has the same loops in Python.
"""

from __future__ import annotations

import shutil
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

SWITCH = "moonpool-as-mooncake.pth"


class BuildWithSwitch(build_py):
    """Copies the switch beside the packages. Not in an editable install: what is there lies nowhere near."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copyfile(Path(__file__).with_name(SWITCH), Path(self.build_lib, SWITCH))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib, SWITCH))]


HOT = Extension(
    "moonpool.store_client._hot",
    sorted(glob("store_client/hot*.c")),
    depends=sorted(glob("store_client/hot*.h")),
    optional=True,
    py_limited_api=True,
    extra_compile_args=["-O3", "-pthread"],
    extra_link_args=["-pthread"],
)

setup(
    cmdclass={"build_py": BuildWithSwitch},
    ext_modules=[HOT],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
