"""Launch stacks: which cache policy for a runtime's per-launch device block.

An OpenMP runtime gives each kernel launch a block of device memory for the stacks of
its threads. This package replays traces of launches, allocations and frees through
the policies that a review of libgomp's cache argued about, and through your own.
"""

from .costs import LaunchCosts, launch_costs
from .model import (
    Cliff,
    Geometry,
    StackResult,
    cliff,
    compare,
    geometry,
    replay,
    space_for,
    sweep,
)
from .policies import SOFTSTACK_CACHE_LIMIT, BuiltIn, policy, policy_names
from .reference import (
    Block,
    Counts,
    Device,
    Give,
    Idle,
    Lock,
    Memory,
    Pause,
    Request,
    StackPolicy,
    Take,
    Wait,
    Wake,
)
from .trace import Alloc, Free, Launch, LaunchTrace, Touch, open_launches

__all__ = [
    "SOFTSTACK_CACHE_LIMIT",
    "Alloc",
    "Block",
    "BuiltIn",
    "Cliff",
    "Counts",
    "Device",
    "Free",
    "Geometry",
    "Give",
    "Idle",
    "Launch",
    "LaunchCosts",
    "LaunchTrace",
    "Lock",
    "Memory",
    "Pause",
    "Request",
    "StackPolicy",
    "StackResult",
    "Take",
    "Touch",
    "Wait",
    "Wake",
    "cliff",
    "compare",
    "geometry",
    "launch_costs",
    "open_launches",
    "policy",
    "policy_names",
    "replay",
    "space_for",
    "sweep",
]
