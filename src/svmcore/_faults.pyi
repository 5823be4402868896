from typing import Final

REASONS: Final[tuple[str, ...]]

def window(page: int, granularity: int, start: int, last: int) -> tuple[int, int]: ...
