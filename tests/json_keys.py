"""Keys that ``svmcore replay --json`` prints at least, and ``Result.to_dict`` has."""

from __future__ import annotations

KEYS = {
    "trace",
    "policy",
    "machine",
    "settings",
    "faults",
    "duplicate_faults",
    "faults_by_processor",
    "migrations",
    "migration_attempts",
    "migrated_pages",
    "migrated_bytes",
    "bytes_to_device",
    "bytes_to_host",
    "evictions",
    "evicted_bytes",
    "duplicated_bytes",
    "remote_accesses",
    "errors",
    "time_ns",
    "wall_s",
    "engine_s",
    "records_per_s",
}
