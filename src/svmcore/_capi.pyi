from typing import Final

__all__ = ["api"]

api: Final[object]
