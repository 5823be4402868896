"""The one thing that pyproject.toml cannot say: where svmcore's header lies."""

from Cython.Build import cythonize
from setuptools import Extension, setup

import svmcore

setup(
    ext_modules=cythonize(
        [Extension("pagewalk", ["pagewalk.pyx"], include_dirs=[svmcore.get_include()])],
        language_level=3,
    )
)
