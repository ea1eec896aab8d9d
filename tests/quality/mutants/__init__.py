"""Mistakes that the tests should notice, for `quality.mutations`, by the part they are in."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A mistake and the tests that should notice it.

    Attributes:
      name: what is wrong after it.
      file: the file, seen from `jaxpgs/search`.
      old: text that stands there once.
      new: what replaces it.
      match: which tests to run, as pytest's `-k`.
      test: the file that they are in, below `tests`.
    """

    name: str
    file: str
    old: str
    new: str
    match: str
    test: str = "test_guards.py"
