"""Mistakes that the tests should notice, for `quality.mutations`, grouped by part."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A mistake and the tests that should notice it.

    Attributes:
      name: what is wrong in the changed code.
      file: the path of the file, relative to `jaxpgs/search`.
      old: text that occurs exactly once in the file.
      new: what replaces it.
      match: which tests to run, an expression for pytest's `-k`.
      test: the name of the file with these tests, in any folder below `tests`.
    """

    name: str
    file: str
    old: str
    new: str
    match: str
    test: str = "test_guards.py"
