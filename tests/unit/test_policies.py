"""Policies by name: specs, parameters, kernels, the registry."""

import dataclasses
import itertools
from importlib import metadata

import pytest

from svmcore import Space
from svmcore.errors import InvalidArgumentError
from svmcore.policies import base
from svmcore.policies.base import (
    Policy,
    make_policy,
    policy_class,
    policy_names,
    register,
)
from svmcore.policies.kernels import KERNELS, kernel_rules
from svmcore.policies.kfd import Kfd


def test_names():
    assert "kfd" in policy_names()
    assert policy_names() == sorted(policy_names())
    assert policy_class("kfd") is Kfd
    assert Kfd.name == "kfd"


@pytest.mark.parametrize(
    ("spec", "settings", "expected"),
    [
        ("kfd", {}, Kfd()),
        (" kfd ( ) ", {}, Kfd()),
        ("kfd(kernel=6.12, xnack=off)", {}, Kfd(kernel="6.12", xnack=False)),
        ("kfd(granularity=0x4)", {}, Kfd(granularity=4)),
        ("kfd(granularity=4)", {"granularity": 7}, Kfd(granularity=7)),
        ("kfd", {"granularity": "7", "xnack": "no"}, Kfd(granularity=7, xnack=False)),
        ("kfd", {"max_svm_range_pages": "512"}, Kfd(max_svm_range_pages=512)),
        ("kfd", {"max_svm_range_pages": None}, Kfd()),
        (Kfd(granularity=3), {}, Kfd(granularity=3)),
        (Kfd(granularity=3, xnack=False), {"granularity": 5}, Kfd(granularity=5, xnack=False)),
        ("kfd", {"kernel": 6.12}, Kfd(kernel="6.12")),
        ("kfd(kernel=7.3.4)", {}, Kfd(kernel="7.3.4")),
    ],
)
def test_specs(spec, settings, expected):
    assert make_policy(spec, **settings) == expected


@pytest.mark.parametrize("word", ["on", "true", "yes", "1", "On", "TRUE", True, 1])
@pytest.mark.parametrize("value", [True, False])
def test_words_for_switches(word, value):
    off = {"on": "off", "true": "false", "yes": "no", "1": "0", True: False}
    given = word if value else off.get(word.lower() if isinstance(word, str) else word, 0)
    assert make_policy("kfd", xnack=given).xnack is value


@pytest.mark.parametrize(
    ("spec", "settings", "words"),
    [
        ("dfk", {}, "'dfk'.*kfd"),
        ("", {}, "expected name"),
        ("kfd(", {}, "expected name"),
        ("kfd)x", {}, "expected name"),
        ("kfd(granularity)", {}, "key=value"),
        ("kfd(granlarity=3)", {}, "'granlarity', expected kernel, xnack, granularity"),
        ("kfd", {"colour": 3}, "'colour', expected kernel"),
        (Kfd(), {"colour": 3}, "'colour', expected kernel"),
        ("kfd(granularity=nine)", {}, "granularity = 'nine', expected a whole number"),
        ("kfd", {"granularity": 3.5}, "a whole number"),
        ("kfd", {"granularity": None}, "a whole number"),
        ("kfd(granularity=28)", {}, "0 to 27"),
        ("kfd(granularity=-1)", {}, "0 to 27"),
        ("kfd(xnack=maybe)", {}, "on or off"),
        ("kfd(kernel=5.4)", {}, "'5.4'.*7.3, 6.12, 6.1"),
        ("kfd(kernel=7.30)", {}, "'7.30'"),
        ("kfd(kernel=6.1x)", {}, "'6.1x'"),
        ("kfd(max_svm_range_pages=0)", {}, "1 or more"),
    ],
)
def test_wrong_specs(spec, settings, words):
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        make_policy(spec, **settings)
    assert caught.value.code == "EINVAL"
    with pytest.raises(InvalidArgumentError, match=words):
        Space("gpu-80g", policy=spec, **settings)


def test_settings_are_every_parameter():
    policy = make_policy("kfd(kernel=6.12)")
    assert list(policy.settings()) == [field.name for field in dataclasses.fields(Kfd)]
    assert make_policy("kfd", **policy.settings()) == policy
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.granularity = 3


def test_kernels():
    assert kernel_rules("6.12.117") is KERNELS["6.12"]
    assert kernel_rules("6.1.176") is KERNELS["6.1"]
    assert [name for name, rules in KERNELS.items() if rules.name != name] == []
    for a, b in itertools.combinations(KERNELS.values(), 2):
        assert dataclasses.replace(a, name="") != dataclasses.replace(b, name="")
    with pytest.raises(InvalidArgumentError, match=r"7\.3, 6\.12, 6\.1"):
        kernel_rules("8")


@pytest.mark.parametrize(
    ("kernel", "granularity", "size"),
    [("7.3", 4, 16), ("6.12", 4, 16), ("6.1", 4, 512), ("7.3", 12, 4096), ("6.1", 12, 512)],
)
def test_unregistered_blocks_of_each_kernel(kernel, granularity, size):
    space = Space("gpu-80g", kernel=kernel, granularity=granularity)
    space.map(1 << 40, 8192 * 4096)
    space.access(1 << 40)
    assert [r.size // 4096 for r in space.ranges()] == [size]


def test_the_largest_range_follows_the_memory():
    for pages, expected in [(1 << 18, 8192), (1 << 12, 512), (3 << 17, 8192)]:
        machine = space_machine(pages)
        space = Space(machine)
        space.map(1 << 40, 20_000 * 4096)
        space.set_attr(1 << 40, 20_000 * 4096, [])
        assert max(r.size // 4096 for r in space.ranges()) == expected


def space_machine(pages):
    from svmcore import Gpu, Machine

    return Machine("m", (Gpu(1, pages), Gpu(2, 1 << 24)))


# ---- the registry -------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(base, "_known", dict(base._known))
    return base._known


def test_register_a_policy(registry):
    @register("mine")
    @dataclasses.dataclass(frozen=True)
    class Mine(Policy):
        share: float = 0.5
        mode: str = "soft"
        limit: int | None = None

        def create(self, machine, node=None):
            return Kfd(granularity=1).create(machine, node)

    assert "mine" in policy_names()
    assert make_policy("mine(share=0.25, mode=hard)") == Mine(0.25, "hard")
    assert make_policy("mine", share="1e-3").share == pytest.approx(0.001)
    with pytest.raises(InvalidArgumentError, match="a number"):
        make_policy("mine(share=half)")
    space = Space("gpu-80g", policy="mine(limit=3)")
    space.map(1 << 40, 4096)
    assert space.access(1 << 40).ok
    assert space.policy.settings() == {"share": 0.5, "mode": "soft", "limit": 3}


def test_a_name_is_taken_once(registry):
    with pytest.raises(InvalidArgumentError, match="registered already"):

        @register("kfd")
        class Other(Policy):
            pass

    assert policy_class("kfd") is Kfd


def test_entry_points_are_found(registry, monkeypatch):
    class Entry:
        name = "from-a-package"

        @staticmethod
        def load():
            @dataclasses.dataclass(frozen=True)
            class Foreign(Policy):
                depth: int = 2

            return Foreign

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Entry] if group else [])
    assert make_policy("from-a-package(depth=5)").depth == 5
    assert "from-a-package" in policy_names()


def test_base_policy_decides_nothing():
    with pytest.raises(NotImplementedError):
        Policy().create(None)


def test_an_entry_point_that_does_not_load_spoils_no_other_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = metadata.EntryPoint("broken", "no_such_module:Policy", base._GROUP)
    monkeypatch.setattr(base, "_broken", {})
    monkeypatch.setattr(metadata, "entry_points", lambda group: [entry])
    assert "kfd" in base.policy_names()
    with pytest.raises(InvalidArgumentError, match="Policy cannot be loaded"):
        make_policy("broken")
