"""The one thing of the build that pyproject.toml can't say: a .pth file at the root of site-packages."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
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


setup(cmdclass={"build_py": BuildWithSwitch})
