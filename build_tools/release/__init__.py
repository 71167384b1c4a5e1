"""A release: sdist and wheel with the same bytes at every build, checks of both, an SBOM, checksums, and trials on every Python.

`python -m build_tools.release build` writes `dist/`; `check` tries the wheel on each Python found. See RELEASING.md.
"""
