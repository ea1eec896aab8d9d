"""A user's program: a type checker finds the mistakes in it, and nothing else."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "typing" / "user_program.py"
# As a user has it: of a library that is installed only the annotations count.
CONFIG = """
[mypy]
strict = true
ignore_missing_imports = true
[mypy-jaxpgs.*]
follow_imports = silent
"""


@pytest.mark.slow  # reads JAX's types as well, without a cache
def test_a_type_checker_finds_a_users_mistakes(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "mypy.ini").write_text(CONFIG)
    (tmp_path / "user_program.py").write_text(PROGRAM.read_text())
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache"]
    found = subprocess.run(
        [*command, "--hide-error-context", "--no-pretty", "user_program.py"],
        cwd=tmp_path, env={"MYPYPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True,
    )  # fmt: skip
    errors = [line for line in found.stdout.splitlines() if ": error: " in line]
    lines = [int(line.split(":")[1]) for line in errors if line.startswith("user_program.py")]
    text = PROGRAM.read_text().splitlines()
    wrong = [number for number, line in enumerate(text, 1) if "# wrong: " in line]
    assert len(wrong) == 3
    assert lines == wrong, found.stdout + found.stderr
