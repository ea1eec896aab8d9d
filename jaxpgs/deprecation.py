"""Former names, which go on working for one release and warn."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def former_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Makes the `__getattr__` of a module some of whose names have changed.

    Args:
      module: the module's `__name__`.
      names: where each former name is now, as `"package.module:name"`, or `"package.module"` for a
        module.

    Returns:
      A function for the module's `__getattr__`. It warns with a `DeprecationWarning` that tells the
      new name, and raises `AttributeError` for names that never were.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, attribute = names[name].partition(":")
        now = ".".join(filter(None, (place, attribute)))
        warnings.warn(f"{module}.{name} is now {now}.", DeprecationWarning, stacklevel=2)
        found = importlib.import_module(place)
        return getattr(found, attribute) if attribute else found

    return get


def former_module(name: str, former: str, now: str) -> None:
    """Warns whoever imports a module, or runs it, under its former name.

    Args:
      name: the module's `__name__`, which is `"__main__"` where it is run.
      former: what it was called.
      now: what it is called.
    """
    # An import is attributed to the importer, as the frames of the import system do not count.
    level = 2 if name == "__main__" else 3
    warnings.warn(f"{former} is now {now}.", DeprecationWarning, stacklevel=level)
