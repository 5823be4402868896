"""svmcore: a model of GPU shared virtual memory."""

from ._version import __version__

__all__ = ["__version__"]
