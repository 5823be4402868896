"""Use the extension beside the Python interface: both see one state."""

import pagewalk

import svmcore

BASE = 0x7F00_0000_0000
SIZE = 64 << 20

space = svmcore.Space("gpu-80g", policy="kfd")
space.map(BASE, SIZE)
faults, fatal, events = pagewalk.random_walk(space, BASE, SIZE, 100_000)
counters = space.counters()
print(f"{faults} faults, {fatal} fatal, {events} events")
print(f"{counters['migrated_bytes'] >> 20} MiB moved, {counters['pages_touched']} pages touched")
print("resident:", space.residency(BASE, SIZE))
