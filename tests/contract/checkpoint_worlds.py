"""Simulated worlds for the checks of ``checkpoint_contract.py``."""

import contextlib

from contract.fake_driver import FakeDriver
from svmcore import Gpu, Machine
from svmcore.checkpoint.cuda import CudaCheckpoint
from svmcore.checkpoint.process import SimCheckpoint, SimDriver, SimNode

MIB = 1 << 20


class SimChild:
    """A simulated process with contents in its memory."""

    def __init__(self, world, mib, devices):
        self.world = world
        self.process = world.node.spawn()
        self.pid = self.process.pid
        self.devices = devices
        for number in devices:
            self.process.allocate(mib * MIB, number, f"contents {number}")

    def check(self):
        whole = [a.data for a in self.process.allocations()]
        expected = [f"contents {number}" for number in self.devices]
        on_device = all(a.on_device for a in self.process.allocations())
        self.process.may_call("check")
        return whole == expected and on_device, [self.process.gpus[n] for n in self.devices]

    def busy(self):
        self.process.submit(2_000_000_000)

    def wait_idle(self):
        self.world.node.step(self.process.idle_ns())

    def kill(self):
        self.world.node.kill(self.pid)

    close = kill


class SimWorld:
    """A simulated node of *gpus* GPUs whose driver does as real ones do."""

    name = "simulator"
    #: MiB that the use of a GPU may differ by with the same processes on it.
    slack_mib = 0

    def __init__(self, gpus=2, **driver):
        machine = Machine("contract", tuple(Gpu(1 + i, 36_000_000) for i in range(gpus)))
        self.node = SimNode(machine, driver=SimDriver(remap_rule="visible", **driver))
        self.sim = SimCheckpoint(self.node)
        self.backend = self.sim
        self.gpus = list(self.node.uuids)
        self.own_pid = self.sim.caller.pid

    def start(self, mib=16, devices=(0,)):
        return SimChild(self, mib, devices)

    def used_mib(self):
        names = {gpu: self.node.gpu_name(gpu) for gpu in self.gpus}
        return {gpu: self.node.system.used(name) // MIB for gpu, name in names.items()}

    @contextlib.contextmanager
    def without_cuda(self):
        process = self.node.spawn(cuda=False)
        yield process.pid
        self.node.kill(process.pid)

    def dead_pid(self):
        process = self.node.spawn()
        self.node.kill(process.pid)
        return process.pid

    def initialise(self):
        """The caller has CUDA."""


class FakeWorld(SimWorld):
    """The real backend over a stand-in for the driver."""

    name = "fake driver"

    def __init__(self, gpus=2):
        super().__init__(gpus)
        self.sim.caller.cuda = False
        self.driver = FakeDriver(self.sim)
        self.backend = CudaCheckpoint(self.driver)

    def initialise(self):
        self.driver.cuInit(0)
