"""The switch: makes `import mooncake.store` give Moonpool's classes.

`moonpool-as-mooncake.pth` calls `install` at the start of every Python process whose environment says
MOONPOOL_AS_MOONCAKE=1. So nothing is imported here that a start would notice.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

VARIABLE = "MOONPOOL_AS_MOONCAKE"
PACKAGE = "mooncake"
MODULE = "mooncake.store"
OURS = "moonpool.store_client.mooncake"


class _Finder(MetaPathFinder):
    """Answers for mooncake.store, and for mooncake where no real one is there. Everything else is left alone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See MetaPathFinder."""
        if fullname == MODULE:
            return ModuleSpec(fullname, _StoreLoader(), origin=OURS)
        if fullname == PACKAGE and PathFinder.find_spec(fullname) is None:
            return ModuleSpec(fullname, _EmptyLoader(), origin=OURS, is_package=True)
        return None


class _StoreLoader(Loader):
    """Fills a module with what ours has."""

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Imports ours now, not before."""
        from importlib import import_module

        ours = import_module(OURS)
        names = vars(ours).items()
        vars(module).update({name: value for name, value in names if not name.startswith("__")})
        vars(module)["__all__"] = list(vars(ours)["__all__"])


class _EmptyLoader(Loader):
    """Of the package, where there is no real one."""

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


_finder = _Finder()
_displaced: dict[str, ModuleType] = {}


def install() -> None:
    """From now on `import mooncake.store` gives ours. Objects that were made of the real classes stay what they are."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
        real = sys.modules.pop(MODULE, None)
        if real is not None:
            _displaced[MODULE] = real
        _forget_attribute()


def uninstall() -> None:
    """From now on `import mooncake.store` gives the real one, where there is one."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        sys.modules.pop(MODULE, None)
        package = sys.modules.get(PACKAGE)
        if package is not None and isinstance(getattr(package, "__loader__", None), _EmptyLoader):
            del sys.modules[PACKAGE]
        _forget_attribute()
        # A C extension can't be loaded twice: what was there before comes back.
        sys.modules.update(_displaced)
        if _displaced and package is not None:
            setattr(package, "store", _displaced[MODULE])  # noqa: B010
        _displaced.clear()


def _forget_attribute() -> None:
    """`from mooncake import store` looks at the package first."""
    package = sys.modules.get(PACKAGE)
    if package is not None:
        vars(package).pop("store", None)
