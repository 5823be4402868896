"""Makes the managed memory of a dialect by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError
from ..machine import Machine
from .acl import AclMemory
from .hip import HipMemory
from .kfd import KfdMemory
from .memory import SEMANTICS, ManagedMemory, Options
from .unified import CudaMemory

__all__ = ["managed_memory"]


def managed_memory(
    semantics: str = "acl", machine: str | Path | Machine = "gpu-80g", **options: Any
) -> ManagedMemory:
    """Managed memory of one process.

    Parameters
    ----------
    semantics : str
        ``acl`` (the document), ``acl-driver``, ``cuda``, ``hip`` or ``kfd``.
    machine : str, Path or Machine
        Its GPUs are the devices.
    **options
        As the class of the dialect takes them: :class:`AclMemory`,
        :class:`CudaMemory`, :class:`HipMemory`, :class:`KfdMemory`.

    Raises
    ------
    InvalidArgumentError
        For unknown semantics, an unknown machine or option.
    """
    classes: dict[str, Callable[..., ManagedMemory]] = {
        "acl": partial(AclMemory, "acl"),
        "acl-driver": partial(AclMemory, "acl-driver"),
        "cuda": CudaMemory,
        "hip": HipMemory,
        "kfd": KfdMemory,
    }
    if str(semantics) not in classes:
        raise InvalidArgumentError(
            f"semantics {semantics!r}: expected one of {', '.join(SEMANTICS)}"
        )
    make = classes[semantics]
    known = {*inspect.signature(make).parameters, *Options.__annotations__} - {"machine", "options"}
    if "settings" not in known and not options.keys() <= known:
        raise InvalidArgumentError(
            f"semantics {semantics}: option {min(options.keys() - known)!r}, "
            f"expected {', '.join(sorted(known))}"
        )
    return make(machine, **options)
