"""Run as a program in a clone: gives it a .venv as `make setup` would, with this Python's packages and its own code."""

from __future__ import annotations

import site
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """In the folder that it is started in."""
    venv = Path.cwd() / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    shared = [f"import site; site.addsitedir({folder!r})" for folder in site.getsitepackages()]
    # The clone's code first: the shared packages know another tree of it.
    (packages / "shared.pth").write_text("\n".join([str(Path.cwd() / "src"), *shared, ""]))
    program = venv / "bin" / "moonpool"
    program.write_text(f"#!{venv}/bin/python\nfrom moonpool.store_client.cli.main import main\nmain()\n")
    program.chmod(0o755)


if __name__ == "__main__":
    main()
