"""A search that is compiled once and then thinks about one position after another, on the host.

What the engine over GTP and the board for people share: which searches there are by name, how many
simulations fit into a time, and what is to be read off an answer.
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
_MOST = 100_000  # simulations, where time is the limit
_TRIAL = 256  # simulations that show how many fit into a time
_NO_LIMIT = 1e9  # seconds
_LONGEST_LINE = 10  # moves of what it expects


class Look(NamedTuple):
    """What is known of a position before any search.

    Attributes:
      policy: `[A]` the network's.
      value: the network's.
      worth: `[A]` what the mover gets by each action at once, and the network expects from there.
    """

    policy: np.ndarray
    value: float
    worth: np.ndarray


class Brain(NamedTuple):
    """What positions are judged by.

    Attributes:
      params: the network's parameters; nothing where there is no network.
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
      brain: what positions are judged by.
      search: how.
    """

    brain: Brain
    search: Search


class Thought(NamedTuple):
    """What a search thinks of one position.

    Attributes:
      action: its move.
      value: what the player to move expects.
      policy: `[A]` the search policy.
      visits: `[A]` simulations of each action.
      qvalues: `[A]` mean return of each action, of no meaning where there are no visits.
      line: how it expects the game to go on, as actions; empty if it does not know.
    """

    action: int
    value: float
    policy: np.ndarray
    visits: np.ndarray
    qvalues: np.ndarray
    line: tuple[int, ...]


def make_brain(env: Env, network: Any = None) -> Brain:
    """Makes what a search needs to judge positions.

    Args:
      env: the game.
      network: what `load_pretrained` returns, or `(params, apply_fn)` as `networks.functional`
        does; None judges by random playouts.
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
        # A call with a copy of the state for each action.
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
      brain: what positions are judged by.
      name: one of `SEARCHES`.
      simulations: for each move; 0 for as many as fit.
      seconds: the time that they have to fit into.
      state: a position, unbatched, to try it with.

    Raises:
      ValueError: if the search adapts a policy head and there is none.
    """
    if name in LEARNING and not jax.tree.leaves(brain.params):
        raise ValueError(f"{name} adapts a network's policy head; without a network take mcts")
    if not simulations:
        # A short search shows how many simulations fit into the time.
        trial = make_thinker(brain, name, _TRIAL, 0.0, state)
        simulations = fitting(trial, state, seconds)
    knobs = {"adapt": "policy_head"} if name in LEARNING else {}
    made = Thinker(brain, _MAKERS[name](brain.recurrent_fn, simulations, **knobs))
    warm_up(made, state)
    return made


def warm_up(thinker: Thinker, state: Embedding) -> PolicyOutput:
    """Compiles all that a move needs, and returns a hasty answer."""
    return think(thinker, state, jax.random.key(0), seconds=1e-3, report=lambda progress: None)


def fitting(thinker: Thinker, state: Embedding, seconds: float) -> int:
    """Returns how many simulations fit into some seconds, in two digits."""
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
      seconds: the limit; None if there is none.
      slice_seconds: between two reports, at most a quarter of the limit.
      report: called with a `Progress` now and then, None if nobody looks.

    Returns:
      The answer, with an axis B of one.
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
    """Returns what is known of a position, unbatched, before any search."""
    root = brain.root_fn(brain.params, jax.random.key(0), _batch(state))
    worth = np.asarray(brain.worth_fn(brain.params, root.embedding))
    return Look(_softmax(root.prior_logits), float(np.ravel(root.value)[0]), worth)


def fair_opening(brain: Brain, state: HexState) -> int:
    """Returns the move that leaves Hex's second player, who may swap, the least.

    Whoever swaps takes the better side, so it is the move whose worth is closest to 0.
    """
    worth = np.where(np.asarray(state.labels) == 0, look(brain, state).worth, np.inf)
    return int(np.abs(worth).argmin())


def adapted_policy(brain: Brain, output: PolicyOutput, state: Embedding) -> np.ndarray | None:
    """Returns the root's policy `[A]` by the parameters that a search has adapted.

    Policy gradient search follows it below the root. None where nothing adapts.
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
    """Returns what a search of one position has found."""
    found = output.search_state
    action = int(output.action[0])
    visits, qvalues = np.asarray(found.visits[0]), np.asarray(found.qvalues[0])
    value = float(qvalues[action] if visits[action] else found.value[0])
    policy = np.asarray(output.action_weights[0])
    line: list[int] = []
    if found.nodes is not None:
        line = principal_variation(found.nodes, first=action, max_length=_LONGEST_LINE)
    return Thought(action, value, policy, visits, qvalues, tuple(line))
