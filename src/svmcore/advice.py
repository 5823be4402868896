"""Words of advice: one neutral table, and what every vendor calls each of them.

Traces, hint plans and the dialects of ``svmcore.managed`` speak of advice by
these words. A word is *set* or *unset*; what that does depends on the driver and
is not told here. Pure data: nothing here knows an engine.

Source: the vendors' headers, and how ROCr turns HIP advice into attributes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .attributes import LOCATION_UNDEFINED, Attribute, Flag

__all__ = [
    "ALIASES",
    "KFD_ATTRIBUTE",
    "VENDOR_ADVICE",
    "WORDS",
    "Meaning",
    "VendorAdvice",
    "Word",
    "meaning_of",
    "words_of_attribute",
]


class Word(NamedTuple):
    """What a neutral word asks for."""

    text: str
    """One sentence."""
    location: bool
    """Setting it names a processor."""
    value: bool
    """Setting it takes a number."""
    unset: bool
    """It can be taken back."""


class Meaning(NamedTuple):
    """A name of advice, resolved."""

    word: str
    """A key of :data:`WORDS`."""
    on: bool
    """Set, or unset."""


class VendorAdvice(NamedTuple):
    """One enumerator of a vendor's interface."""

    vendor: str
    """``cuda``, ``hip``, ``acl``, ``hsa`` or ``kfd``."""
    word: str
    """A key of :data:`WORDS`."""
    on: bool
    """Set, or unset."""


#: Every neutral word.
WORDS: Final[dict[str, Word]] = {
    "preferred_location": Word("The pages should live there.", True, False, True),
    "read_mostly": Word("Readers may each keep a copy.", False, False, True),
    "accessed_by": Word("The processor will access; pages may move to it.", True, False, True),
    "access_in_place": Word(
        "The processor will access; pages stay where they are.", True, False, True
    ),
    "no_access": Word("The processor must not access.", True, False, False),
    "coarse_grain": Word("No coherence while a kernel runs.", False, False, True),
    "granularity": Word("log2 of the 4 KiB pages that one fault restores.", False, True, False),
    "set_flags": Word("KFD flags to switch on, by number.", False, True, False),
    "clear_flags": Word("KFD flags to switch off, by number.", False, True, False),
    "prefetch": Word("Move the pages there now.", True, False, False),
    "discard": Word("The contents are not needed any more.", False, False, False),
}

#: Second names of a word in one of its two senses.
ALIASES: Final[dict[str, Meaning]] = {
    "access": Meaning("accessed_by", True),
    "fine_grain": Meaning("coarse_grain", False),
}

#: Word and sense -> KFD attribute, and its value where the advice fixes it (``None``: the
#: location or number given). A word that is missing has no KFD attribute.
KFD_ATTRIBUTE: Final[dict[tuple[str, bool], tuple[Attribute, int | None]]] = {
    ("preferred_location", True): (Attribute.PREFERRED_LOC, None),
    ("preferred_location", False): (Attribute.PREFERRED_LOC, LOCATION_UNDEFINED),
    ("read_mostly", True): (Attribute.SET_FLAGS, int(Flag.GPU_READ_MOSTLY)),
    ("read_mostly", False): (Attribute.CLR_FLAGS, int(Flag.GPU_READ_MOSTLY)),
    ("accessed_by", True): (Attribute.ACCESS, None),
    ("accessed_by", False): (Attribute.NO_ACCESS, None),
    ("access_in_place", True): (Attribute.ACCESS_IN_PLACE, None),
    # Plain access, not none: pages move to the processor again.
    ("access_in_place", False): (Attribute.ACCESS, None),
    ("no_access", True): (Attribute.NO_ACCESS, None),
    ("coarse_grain", True): (Attribute.CLR_FLAGS, int(Flag.COHERENT)),
    ("coarse_grain", False): (Attribute.SET_FLAGS, int(Flag.COHERENT)),
    ("granularity", True): (Attribute.GRANULARITY, None),
    ("set_flags", True): (Attribute.SET_FLAGS, None),
    ("clear_flags", True): (Attribute.CLR_FLAGS, None),
    ("prefetch", True): (Attribute.PREFETCH_LOC, None),
}

_WORD_BY_ATTRIBUTE: Final = {
    Attribute.PREFERRED_LOC: "preferred_location",
    Attribute.PREFETCH_LOC: "prefetch",
    Attribute.ACCESS: "accessed_by",
    Attribute.ACCESS_IN_PLACE: "access_in_place",
    Attribute.NO_ACCESS: "no_access",
    Attribute.SET_FLAGS: "set_flags",
    Attribute.CLR_FLAGS: "clear_flags",
    Attribute.GRANULARITY: "granularity",
}


def _vendor_advice() -> dict[str, VendorAdvice]:
    """Names of CUDA (driver and runtime), HIP, ACL, HSA and KFD."""
    shared = {
        "read_mostly": "ReadMostly",
        "preferred_location": "PreferredLocation",
        # All three mean: keep a mapping, move nothing.
        "access_in_place": "AccessedBy",
    }
    table: dict[str, VendorAdvice] = {}
    for word, name in shared.items():
        upper = "".join("_" + c if c.isupper() else c for c in name).upper()
        for on, sense in ((True, "Set"), (False, "Unset")):
            table[f"cudaMemAdvise{sense}{name}"] = VendorAdvice("cuda", word, on)
            table[f"CU_MEM_ADVISE_{sense.upper()}{upper}"] = VendorAdvice("cuda", word, on)
            table[f"hipMemAdvise{sense}{name}"] = VendorAdvice("hip", word, on)
            table[f"ACL_MEM_ADVISE_{sense.upper()}{upper}"] = VendorAdvice("acl", word, on)
    table["hipMemAdviseSetCoarseGrain"] = VendorAdvice("hip", "coarse_grain", True)
    table["hipMemAdviseUnsetCoarseGrain"] = VendorAdvice("hip", "coarse_grain", False)
    for name, word in (
        ("MIGRATION_GRANULARITY", "granularity"),
        ("PREFERRED_LOCATION", "preferred_location"),
        ("PREFETCH_LOCATION", "prefetch"),
        ("READ_MOSTLY", "read_mostly"),
        ("AGENT_ACCESSIBLE", "accessed_by"),
        ("AGENT_ACCESSIBLE_IN_PLACE", "access_in_place"),
        ("AGENT_NO_ACCESS", "no_access"),
    ):
        table[f"HSA_AMD_SVM_ATTRIB_{name}"] = VendorAdvice("hsa", word, True)
    for attribute, word in _WORD_BY_ATTRIBUTE.items():
        table[attribute.name] = VendorAdvice("kfd", word, True)
        table[f"KFD_IOCTL_SVM_ATTR_{attribute.name}"] = VendorAdvice("kfd", word, True)
    return table


#: A vendor's enumerator -> whose it is, the neutral word, and its sense.
VENDOR_ADVICE: Final[dict[str, VendorAdvice]] = _vendor_advice()


def meaning_of(name: str) -> Meaning | None:
    """Word and sense of a neutral word, a second name or a vendor's enumerator.

    ``unset_`` before a neutral word takes it back.

    Returns
    -------
    Meaning or None
        ``None`` for a name that nobody has.

    Examples
    --------
    >>> from svmcore.advice import meaning_of
    >>> meaning_of("hipMemAdviseUnsetAccessedBy")
    Meaning(word='access_in_place', on=False)
    >>> meaning_of("unset_read_mostly")
    Meaning(word='read_mostly', on=False)
    """
    if name in WORDS:
        return Meaning(name, True)
    if name in ALIASES:
        return ALIASES[name]
    if name in VENDOR_ADVICE:
        return Meaning(*VENDOR_ADVICE[name][1:])
    word = str(name).removeprefix("unset_")
    if word != name and word in WORDS and WORDS[word].unset:
        return Meaning(word, False)
    return None


def words_of_attribute(attribute: int, value: int, *, nowhere: bool = False) -> list[Meaning]:
    """Advice that a KFD attribute, as trace records carry it, stands for.

    Parameters
    ----------
    attribute : int
        :class:`svmcore.attributes.Attribute`.
    value : int
        Flags, where the attribute takes them.
    nowhere : bool
        The location is "none": a preferred location is taken back.

    Returns
    -------
    list of Meaning
        One for each flag that is advice; flags that are not stay together as
        ``set_flags`` or ``clear_flags``.
    """
    kind = Attribute(attribute)
    word = _WORD_BY_ATTRIBUTE[kind]
    if kind not in (Attribute.SET_FLAGS, Attribute.CLR_FLAGS):
        return [Meaning(word, not (nowhere and word == "preferred_location"))]
    found = []
    for key, (known, flag) in KFD_ATTRIBUTE.items():
        if known == kind and flag is not None and value & flag:
            found.append(Meaning(*key))
            value &= ~flag
    if value or not found:
        found.append(Meaning(word, True))
    return found
