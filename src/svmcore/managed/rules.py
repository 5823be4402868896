"""Where the dialects differ: one switch a rule, one table of rows.

:class:`Rules` parametrises the page machine of :mod:`svmcore.managed.pages`.
:data:`DIFFERENCES` names the rows in which ``cuda`` and ``acl`` differ and says
to which steps each applies; the differential test holds both machines to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ..errors import InvalidArgumentError
from .enums import Location
from .state import HOST, Page, ReadMostly, Step, bit

__all__ = ["ACL", "ACL_DRIVER", "CUDA", "DIFFERENCES", "RULES", "Difference", "Rules", "rules_of"]

_MIB = 1 << 20


@dataclass(frozen=True)
class Rules:
    """What a dialect does where dialects differ."""

    name: str
    vendor: str
    """Whose enums and results."""
    granule: int
    """Bytes to which spans are rounded outward: 2 MiB, or the CPU page."""
    host_copy_at_once: bool
    """Read mostly makes a host copy now (A10), not at the next read (C2)."""
    write_cancels: bool
    """A write under read mostly cancels it (A6); else the advice stays (C3)."""
    collapse: str
    """Which copy UNSET_READ_MOSTLY keeps: ``location`` (A13), ``preferred, location``
    (D3) or ``preferred, any`` (C4)."""
    preferred_allocates: str
    """When a preferred location allocates: ``always`` (A21), ``with accessed_by`` (D1)
    or ``never`` (C5)."""
    conflict_is_error: bool
    """A preferred location away from the data is refused (A19), else stored (D2, C5)."""
    advice_guides_faults: bool
    """Faults look at preferred location and accessed-by (C5, C7)."""
    remote_mappings: bool
    """Processors map memory of others (C7); not on A2 and A3 hardware (D11)."""
    prefetch_populates: bool
    """A prefetch reaches every page and every place (C10), or D13 holds."""
    discards: bool
    """Contents can be given up (C12)."""
    same_is_nothing: bool
    """Advice that is set already returns at once (D4)."""
    one_host: bool
    """Queries fold NUMA nodes of the host into the host (D6)."""
    merges: bool
    """Equal neighbouring policies are joined; CUDA never merges (C15)."""


ACL: Final = Rules(
    name="acl",
    vendor="acl",
    granule=2 * _MIB,
    host_copy_at_once=True,
    write_cancels=True,
    collapse="location",
    preferred_allocates="always",
    conflict_is_error=True,
    advice_guides_faults=False,
    remote_mappings=False,
    prefetch_populates=False,
    discards=False,
    same_is_nothing=False,
    one_host=False,
    merges=True,
)
ACL_DRIVER: Final = replace(
    ACL,
    name="acl-driver",
    collapse="preferred, location",
    preferred_allocates="with accessed_by",
    conflict_is_error=False,
    same_is_nothing=True,
    one_host=True,
)
CUDA: Final = Rules(
    name="cuda",
    vendor="cuda",
    granule=4096,
    host_copy_at_once=False,
    write_cancels=False,
    collapse="preferred, any",
    preferred_allocates="never",
    conflict_is_error=False,
    advice_guides_faults=True,
    remote_mappings=True,
    prefetch_populates=True,
    discards=True,
    same_is_nothing=True,
    one_host=False,
    merges=False,
)
#: Dialects that the page machine plays; ``hip`` and ``kfd`` go through KFD attributes.
RULES: Final = {rules.name: rules for rules in (ACL, ACL_DRIVER, CUDA)}


def rules_of(semantics: str) -> Rules:
    """The rules of a dialect of the page machine.

    Raises
    ------
    InvalidArgumentError
        If there is none of that name.
    """
    if semantics not in RULES:
        raise InvalidArgumentError(f"semantics {semantics!r}: expected one of {', '.join(RULES)}")
    return RULES[semantics]


class Difference(NamedTuple):
    """One row in which ``cuda`` and ``acl`` differ."""

    rows: str
    """Names of the rules on both sides."""
    text: str
    """What differs."""
    applies: Callable[[Page, Step], bool]
    """Whether a step on a page in that state is a case of the row."""


def _duplicating(page: Page) -> bool:
    return page.read_mostly == ReadMostly.ENABLED


def _advised(page: Page) -> bool:
    return page.preferred is not None or page.accessed_by != 0


def _meets(page: Page, place: Location | None) -> bool:
    """Whether preferred location and accessed-by meet at *place*."""
    return (
        place is not None
        and page.preferred == place
        and bool(page.accessed_by & bit(HOST if place.is_host else place.id + 1))
    )


#: The rows in which ``cuda`` and ``acl`` differ. Any other step is the same in both.
DIFFERENCES: Final = (
    Difference(
        "C2/A10",
        "set read mostly makes a host copy in ACL, nothing in CUDA",
        lambda page, step: (
            step.word == "read_mostly"
            and step.on
            and not _duplicating(page)
            and not page.copies & bit(HOST)
        ),
    ),
    Difference(
        "C3/A6",
        "a write under read mostly keeps the advice in CUDA, cancels it in ACL",
        lambda page, step: step.word == "access" and step.on and _duplicating(page),
    ),
    Difference(
        "C4/A13",
        "unset read mostly keeps the preferred copy or any in CUDA, the one at location in ACL",
        lambda page, step: step.word == "read_mostly" and not step.on and _duplicating(page),
    ),
    Difference(
        "C5/A19-A26",
        "set preferred location moves nothing in CUDA; ACL allocates, copies or refuses",
        lambda page, step: step.word == "preferred_location" and step.on,
    ),
    Difference(
        "C5/A28",
        "faults follow the advice in CUDA, the toucher in ACL",
        lambda page, step: step.word == "access" and not _duplicating(page) and _advised(page),
    ),
    Difference(
        "C7/A18",
        "accessed by maps what is there in CUDA; with the same preferred location ACL allocates",
        lambda page, step: (
            step.word == "accessed_by"
            and step.on
            and (page.copies != 0 or _meets(page.advised(step), step.place))
        ),
    ),
    Difference(
        "C9/A27",
        "without its preference a processor of accessed-by maps what is there in CUDA",
        lambda page, step: (
            step.word == "preferred_location" and not step.on and page.accessed_by != 0
        ),
    ),
    Difference(
        "C10/D13",
        "prefetch populates and moves anywhere in CUDA; ACL skips, refuses or does nothing",
        lambda page, step: step.word == "prefetch",
    ),
    Difference(
        "C12",
        "discard exists in CUDA only",
        lambda page, step: step.word == "discard",
    ),
)
