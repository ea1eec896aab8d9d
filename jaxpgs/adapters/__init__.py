"""Functions that make `root_fn` and `recurrent_fn` from environments and networks."""

from jaxpgs.adapters.chance import Afterstate, make_stochastic_fns
from jaxpgs.adapters.continuous import Candidates, continuous_action, make_sampled_fns
from jaxpgs.adapters.environments import (
    HiddenState,
    RootFn,
    make_model_fns,
    make_plan_fn,
    make_recurrent_fn,
    make_root_fn,
)
from jaxpgs.adapters.model_checks import check_model
from jaxpgs.adapters.playouts import make_playout_fns

__all__ = [
    "Afterstate",
    "Candidates",
    "HiddenState",
    "RootFn",
    "check_model",
    "continuous_action",
    "make_model_fns",
    "make_plan_fn",
    "make_playout_fns",
    "make_recurrent_fn",
    "make_root_fn",
    "make_sampled_fns",
    "make_stochastic_fns",
]
