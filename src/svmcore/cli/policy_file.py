"""``--policy path/to/file.py:Class``: a policy of the user's own, from its file."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import types
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError
from ..policies.base import Policy, make_policy, parse_spec, policy_names, register
from ..policies.paged import Paged

__all__ = ["policy_from_file"]

_FIELDS = "__dataclass_fields__"
_FILE = re.compile(r"(.*\.py)(?::([^:()]*))?\s*(\(.*\))?\s*", re.DOTALL)


def policy_from_file(spec: str) -> Policy | None:
    """A policy from ``"path/file.py:Class"``, parameters in brackets after it.

    The file is run, as a script is. A class that is not registered gets its own name; it is
    known by it from then on, as any other policy. The class may be left out where the file has
    one policy.

    Returns
    -------
    Policy or None
        ``None`` where *spec* names no file.

    Raises
    ------
    InvalidArgumentError
        If the file is not there or cannot be run, if it has no such name, or the name is no policy.
    """
    match = _FILE.fullmatch(spec)
    if match is None:
        return None
    path, name, brackets = match.groups()
    _, values = parse_spec(f"policy{brackets or ''}")
    cls = _class(path, name)
    try:
        made = cls()
    except TypeError as error:
        raise InvalidArgumentError(
            f"policy {path}: {cls.__name__}: {error}: expected a default for every parameter"
        ) from error
    return make_policy(made, **values)


def _class(path: str, name: str | None) -> type[Policy]:
    where = f"policy {path}"
    try:
        stamp = Path(path).stat().st_mtime_ns
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidArgumentError(
            f"{where}: {why}: expected a Python file, as my_policies.py:Class"
        ) from error
    module = _module(Path(path).resolve(), stamp)
    found = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Policy)
        and value.__module__ == module.__name__
    ]
    listed = ", ".join(found) or "a class derived from svmcore.policies.paged.Paged"
    if name is None and len(found) == 1:
        name = found[0]
    if not name:
        raise InvalidArgumentError(f"{where}: expected {path}:CLASS, one of {listed}")
    cls: Any = getattr(module, name, None)
    if cls is None:
        raise InvalidArgumentError(f"{where}: has no {name!r}, expected {listed}")
    if not (isinstance(cls, type) and issubclass(cls, Policy) and hasattr(cls, _FIELDS)):
        raise InvalidArgumentError(
            f"{where}: {name} is not a policy, expected {listed}, a frozen dataclass"
        )
    if issubclass(cls, Paged) and cls.service is Paged.service:
        raise InvalidArgumentError(f"{where}: {name} is not a policy, expected a method service")
    return cls if "name" in vars(cls) else register(name)(cls)


@functools.lru_cache(maxsize=64)
def _module(path: Path, _stamp: int) -> types.ModuleType:
    """Run a file once; again when it changed."""
    policy_names()  # those of the package first: a copy of one takes its place
    title = f"svmcore_policy_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(title, path)
    if spec is None or spec.loader is None:
        raise InvalidArgumentError(f"policy {path}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    # Annotations that are text are looked up in the module; neighbours can be imported.
    sys.modules[title] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[title]
        raise InvalidArgumentError(
            f"policy {path.name}: cannot be loaded: {error!r}: expected a Python file that runs"
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    return module
