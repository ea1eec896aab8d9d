"""Parts of our searches by the words for them in specs, such as `by_visits(6)`.

A word is the name of a part, with its argument in parentheses if it takes one. All are JSON
strings, so that a file of results records what played.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import optax

from jaxpgs import backup, estimator, reuse, target, truncation
from jaxpgs.search.papers import SIGMA

OPTIMIZERS: dict[str, Any] = {"sgd": optax.sgd, "adam": optax.adam, "auto": estimator.auto_sgd}
_MAKERS: dict[str, Mapping[str, Callable[..., Any]]] = {
    "truncation": {
        "fixed": truncation.fixed,
        "until_new": truncation.until_new,
        "by_visits": truncation.by_visits,
        # Every simulation has one more action, so that the first ones also give a gradient.
        "by_visits_below": functools.partial(truncation.by_visits, count_first=False),
    },
    "backup": {
        "n_step": backup.n_step,
        "last_value": backup.last_value,
        "td_lambda": backup.td_lambda,
        "log_series": backup.log_series,
        "truncated_geometric": backup.truncated_geometric,
    },
    "estimator": {
        "reinforce": estimator.reinforce,
        "step_advantage": estimator.step_advantage,
        "step_advantage_as_printed": functools.partial(estimator.step_advantage, as_printed=True),
    },
    # At temperature 0, as all players play the best action.
    "target": {
        "visit_counts": functools.partial(target.visit_counts, 0.0),
        "completed_q": functools.partial(target.completed_q, 0.0),
        # The number is the minimal range of Q-values.
        "completed_q_from": lambda least: target.completed_q(
            0.0,
            qtransform=functools.partial(target.qtransform_completed_by_mix_value, epsilon=least),
        ),
        # With the constants of Brosseit 2023, eq. 3.4, and without rescaling of values.
        "completed_q_as_printed": functools.partial(target.completed_q, 0.0, qtransform=SIGMA),
    },
}
_WORD = re.compile(r"(\w+)(?:\((.+)\))?")
_WEIGHTS = ("entropy", "kl_to_prior", "kl_from_prior")
_RING = {"reuse": "num_updates", "epochs": "num_epochs", "clip": "clip", "max_weight": "max_weight"}


def make_part(kind: str, word: str) -> Any:
    """Makes a part of a search.

    Args:
      kind: "truncation", "backup", "estimator" or "target".
      word: such as `fixed(5)`, `log_series(0.995)`, `reinforce(value)` or `visit_counts`.

    Returns:
      The part.

    Raises:
      ValueError: if the word is unknown.
    """
    makers, found = _MAKERS[kind], _WORD.fullmatch(word)
    if found is None or found[1] not in makers:
        raise ValueError(f"Unknown {kind} {word!r}; known are {', '.join(makers)}.")
    if found[2] is None:
        return makers[found[1]]()
    try:
        argument = json.loads(found[2])
    except json.JSONDecodeError:
        argument = found[2]
    return makers[found[1]](argument)


def put_parts(knobs: dict[str, Any]) -> None:
    """Puts parts in the place of their words.

    Args:
      knobs: of a spec; changed in place.

    Raises:
      ValueError: as `make_part`.
    """
    for knob in ("count_siblings", "transpositions"):  # in files of results
        if knobs.pop(knob, False):
            raise ValueError(f"The knob {knob} is gone; commit be8a545 has it.")
    for kind in _MAKERS:
        if isinstance(knobs.get(kind), str):
            knobs[kind] = make_part(kind, knobs[kind])


def put_learning(knobs: dict[str, Any], *, regularize: bool) -> None:
    """Replaces the knobs that describe the learning by the estimator and the optimizer.

    The knobs are `optimizer` and `step_size`; `baseline` and `normalize` of `reinforce`; `reuse`,
    the number of updates kept, with `epochs`, `clip` and `max_weight`; and the weights of the
    entropy bonus and the penalties.

    Args:
      knobs: of a spec, after `put_parts`; changed in place.
      regularize: whether to put the weights into the estimator; False if the search takes them
        itself.
    """
    if "optimizer" in knobs or "step_size" in knobs:
        step = [knobs.pop("step_size")] if "step_size" in knobs else []
        knobs["optimizer"] = OPTIMIZERS[knobs.pop("optimizer", "sgd")](*step)
    if "baseline" in knobs:
        knobs["estimator"] = estimator.reinforce(
            knobs.pop("baseline"), normalize=knobs.pop("normalize", False)
        )
    ring = {field: knobs.pop(knob) for knob, field in _RING.items() if knob in knobs}
    if ring:
        knobs["reuse"] = reuse.Reuse(**ring)
    weights = {name: knobs.pop(name) for name in _WEIGHTS if regularize and name in knobs}
    if weights:
        plain = knobs.get("estimator") or estimator.reinforce("value")
        knobs["estimator"] = estimator.regularized(plain, **weights)
