"""The quick tier, which `make test` runs, and the nightly one."""

import pytest


def nightly_but(quick, values):
    """Parameters of a test: all these values, of which only the quick ones are in the quick tier."""
    marks = lambda value: [] if value in quick else [pytest.mark.nightly]
    return [pytest.param(value, marks=marks(value), id=str(value).replace(" ", "-")) for value in values]
