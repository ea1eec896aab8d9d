"""A search that is compiled once and then run on one position after another, from the host.

The GTP engine (`jaxpgs.gtp`) and the board for people (`jaxpgs.play`) share this module: the
searches by name, how many simulations fit into a time, and how to read a search's result.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.adapters.environments import RootFn, make_model_fns, make_recurrent_fn, make_root_fn
from jaxpgs.adapters.playouts import make_playout_fns
from jaxpgs.base import Embedding, Env, Params, PolicyOutput, RecurrentFn
from jaxpgs.envs import HexState
from jaxpgs.search import (
    Progress,
    Search,
    batched_mcts_search,
    extended_pgs_search,
    gumbel_mcts_search,
    gumbel_pgs_search,
    mcs_search,
    pgs_search,
    principal_variation,
    search_for,
)
from jaxpgs.search.models.adapted import merge

_MAKERS: dict[str, Callable[..., Search]] = {
    "pgs": pgs_search,
    "mcs": mcs_search,
    "mcts": batched_mcts_search,
    "gumbel_pgs": gumbel_pgs_search,
    "gumbel_mcts": gumbel_mcts_search,
    "extended_pgs": extended_pgs_search,
}
SEARCHES = tuple(_MAKERS)
LEARNING = ("pgs", "gumbel_pgs", "extended_pgs")  # these adapt the network's policy head
_MOST = 100_000  # the most simulations, where time is the limit
_TRIAL = 256  # simulations of the trial that measures how many fit into a time
_NO_LIMIT = 1e9  # seconds
_LONGEST_LINE = 10  # moves of a principal variation


class Look(NamedTuple):
    """What is known about a position before any search.

    Attributes:
      policy: `[A]` the network's policy.
      value: the network's value.
      worth: `[A]` the reward of each action plus the network's discounted value after it.
    """

    policy: np.ndarray
    value: float
    worth: np.ndarray


class Brain(NamedTuple):
    """The functions that evaluate positions.

    Attributes:
      params: the network's parameters; an empty tuple without a network.
      root_fn: compiled, as `make_root_fn` makes it.
      recurrent_fn: the model.
      worth_fn: compiled, `(params, embedding of one root) -> [A]`, as in `Look`.
    """

    params: Params
    root_fn: RootFn
    recurrent_fn: RecurrentFn
    worth_fn: Callable[[Params, Embedding], chex.Array]


class Thinker(NamedTuple):
    """A search that is compiled for one game.

    Attributes:
      brain: the functions that evaluate positions.
      search: the compiled search.
    """

    brain: Brain
    search: Search


class Thought(NamedTuple):
    """The result of a search of one position.

    Attributes:
      action: the search's move.
      value: the expected return of the player to move.
      policy: `[A]` the search policy.
      visits: `[A]` simulations of each action.
      qvalues: `[A]` mean return of each action, meaningless where there are no visits.
      line: the principal variation, as actions; empty if the search keeps no nodes.
    """

    action: int
    value: float
    policy: np.ndarray
    visits: np.ndarray
    qvalues: np.ndarray
    line: tuple[int, ...]


def make_brain(env: Env, network: Any = None) -> Brain:
    """Makes the functions that a search needs to evaluate positions.

    Args:
      env: the game.
      network: what `load_pretrained` returns, or `(params, apply_fn)` as `networks.functional`
        returns it; None evaluates by random playouts.
    """
    if network is None:
        params, (root_fn, recurrent_fn) = (), make_playout_fns(env)
    elif hasattr(getattr(network, "module", None), "represent"):
        params = network.params
        root_fn, recurrent_fn = make_model_fns(network.module, env, part="head")
    else:
        params, apply_fn = (
            network if isinstance(network, tuple) else (network.params, network.apply_fn)
        )
        root_fn, recurrent_fn = make_root_fn(env, apply_fn), make_recurrent_fn(env, apply_fn)

    @jax.jit
    def worth_fn(params: Params, embedding: Embedding) -> chex.Array:
        # One call evaluates a copy of the state for each action.
        actions = jnp.arange(env.num_actions)
        many = jax.tree.map(lambda x: jnp.repeat(x, len(actions), axis=0), embedding)
        output, _ = recurrent_fn(params, jax.random.key(0), actions, many)
        return output.reward + output.discount * output.value.reshape(-1)

    return Brain(params, jax.jit(root_fn), recurrent_fn, worth_fn)


def make_thinker(
    brain: Brain, name: str, simulations: int, seconds: float, state: Embedding
) -> Thinker:
    """Compiles a search by its name, for `simulations` or for as many as fit into `seconds`.

    Args:
      brain: the functions that evaluate positions.
      name: one of `SEARCHES`.
      simulations: simulations for each move; 0 for as many as fit.
      seconds: the time into which they must fit.
      state: a position, unbatched, for the trial runs.

    Raises:
      ValueError: if the search adapts a policy head and there is no network.
    """
    if name in LEARNING and not jax.tree.leaves(brain.params):
        raise ValueError(f"{name} adapts a network's policy head; without a network use mcts")
    if not simulations:
        # A short search shows how many simulations fit into the time.
        trial = make_thinker(brain, name, _TRIAL, 0.0, state)
        simulations = fitting(trial, state, seconds)
    knobs = {"adapt": "policy_head"} if name in LEARNING else {}
    made = Thinker(brain, _MAKERS[name](brain.recurrent_fn, simulations, **knobs))
    warm_up(made, state)
    return made


def warm_up(thinker: Thinker, state: Embedding) -> PolicyOutput:
    """Compiles everything that a move needs, and returns the result of a very short search."""
    return think(thinker, state, jax.random.key(0), seconds=1e-3, report=lambda progress: None)


def fitting(thinker: Thinker, state: Embedding, seconds: float) -> int:
    """Returns how many simulations fit into the given seconds, rounded to two digits."""
    start = time.perf_counter()
    output = think(thinker, state, jax.random.key(0), seconds=min(seconds, 2.0))
    count = float(output.search_state.visits.sum()) * seconds / (time.perf_counter() - start)
    return int(np.clip(float(f"{count:.1e}"), 16, _MOST))


def think(
    thinker: Thinker,
    state: Embedding,
    rng_key: chex.PRNGKey,
    *,
    seconds: float | None = None,
    slice_seconds: float | None = None,
    report: Callable[[Progress], Any] | None = None,
) -> PolicyOutput:
    """Searches one position.

    Args:
      thinker: the search.
      state: the position, unbatched.
      rng_key: consumed.
      seconds: the time limit; None for no limit.
      slice_seconds: the time between two reports, at most a quarter of the limit.
      report: called with a `Progress` now and then; None for no reports.

    Returns:
      The result, with an axis B of size one.
    """
    params, root_fn = thinker.brain.params, thinker.brain.root_fn
    limit = seconds or _NO_LIMIT
    if slice_seconds is not None:
        slice_seconds = min(limit / 4, slice_seconds)
    states = _batch(state)
    root = root_fn(params, rng_key, states)
    return search_for(
        thinker.search, params, rng_key, root, ~states.legal_action_mask,
        seconds=limit, slice_seconds=slice_seconds, callback=report,
    )  # fmt: skip


def _batch(state: Embedding) -> Embedding:
    return jax.tree.map(lambda x: jnp.asarray(x)[None], state)


def look(brain: Brain, state: Embedding) -> Look:
    """Returns what is known about a position, unbatched, before any search."""
    root = brain.root_fn(brain.params, jax.random.key(0), _batch(state))
    worth = np.asarray(brain.worth_fn(brain.params, root.embedding))
    return Look(_softmax(root.prior_logits), float(np.ravel(root.value)[0]), worth)


def fair_opening(brain: Brain, state: HexState) -> int:
    """Returns the best first move in Hex against a second player who may swap.

    Whoever swaps takes the better side, so this is the move whose worth is closest to 0.
    """
    worth = np.where(np.asarray(state.labels) == 0, look(brain, state).worth, np.inf)
    return int(np.abs(worth).argmin())


def adapted_policy(brain: Brain, output: PolicyOutput, state: Embedding) -> np.ndarray | None:
    """Returns the root's policy `[A]` under the parameters that a search has adapted.

    Policy gradient search follows this policy below the root. None if nothing adapts.
    """
    own = output.search_state.params
    if not jax.tree.leaves(own):
        return None
    params = merge(jax.tree.map(lambda x: x[0], own), brain.params)
    return _softmax(brain.root_fn(params, jax.random.key(0), _batch(state)).prior_logits)


def _softmax(logits: chex.Array) -> np.ndarray:
    """The probabilities `[A]` of logits `[1, A]`."""
    row = np.asarray(logits, np.float64)[0]
    shares = np.exp(row - row.max())
    return shares / shares.sum()


def read(output: PolicyOutput) -> Thought:
    """Returns the result of a search of one position."""
    found = output.search_state
    action = int(output.action[0])
    visits, qvalues = np.asarray(found.visits[0]), np.asarray(found.qvalues[0])
    value = float(qvalues[action] if visits[action] else found.value[0])
    policy = np.asarray(output.action_weights[0])
    line: list[int] = []
    if found.nodes is not None:
        line = principal_variation(found.nodes, first=action, max_length=_LONGEST_LINE)
    return Thought(action, value, policy, visits, qvalues, tuple(line))
