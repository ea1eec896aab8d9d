import os

import jax
import pytest

os.environ["JAXPGS_TINY"] = "1"  # notebooks run their commands small


@pytest.fixture
def strict_promotion():
    """Makes implicit promotion of ranks and dtypes an error.

    A test module opts in with `pytestmark = pytest.mark.usefixtures("strict_promotion")`. Other
    libraries need not pass: wrap their calls in `lenient_promotion`.
    """
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
