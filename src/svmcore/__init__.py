"""svmcore: a model of GPU shared virtual memory.

What does the driver do with this access? A :class:`Space` answers one access at
a time, :func:`replay` a whole trace; :class:`Machine` says on what hardware,
:func:`open_trace` reads the files people have.
"""

import typing

from ._version import __version__
from .engine import AccessResult, Explanation, FaultResult, RangeInfo, Space, System
from .errors import SvmError, TraceError
from .machine import Gpu, Machine

# Not lazy: the module of the same name would take the place of the function.
from .replay import replay
from .result import Result

if typing.TYPE_CHECKING:
    from . import buildinfo as buildinfo
    from . import traces as traces
    from .buildinfo import get_include
    from .traces import open_trace

__all__ = [
    "AccessResult",
    "Explanation",
    "FaultResult",
    "Gpu",
    "Machine",
    "RangeInfo",
    "Result",
    "Space",
    "SvmError",
    "System",
    "TraceError",
    "__version__",
    "get_include",
    "open_trace",
    "replay",
]


_LAZY = {"open_trace": "traces", "get_include": "buildinfo", "traces": "", "buildinfo": ""}


def __getattr__(name: str) -> typing.Any:
    """Names whose modules are loaded when they are first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f".{_LAZY[name] or name}", __name__)
    value = globals()[name] = getattr(module, name) if _LAZY[name] else module
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
