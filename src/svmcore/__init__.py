"""svmcore: a model of GPU shared virtual memory.

What does the driver do with this access? A :class:`Space` answers one access at
a time, :func:`replay` a whole trace; :class:`Machine` says on what hardware,
:func:`open_trace` reads the files people have.
"""

from ._version import __version__
from .buildinfo import get_include
from .engine import AccessResult, Explanation, FaultResult, RangeInfo, Space, System
from .errors import SvmError, TraceError
from .machine import Gpu, Machine
from .replay import replay
from .result import Result
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
