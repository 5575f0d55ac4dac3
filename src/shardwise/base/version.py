"""The version of this package: a constant, so that no metadata of a package is looked for.

Bundles (PyInstaller, Bazel) and PYTHONPATH have none. `pyproject.toml` reads it.
"""

__version__ = "0.1.0"
