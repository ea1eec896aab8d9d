"""Games of one player with chance: their rules, and their models as stochastic MuZero needs them.

An action leads to an afterstate, from which chance draws one of C outcomes by known logits. Both
games have a policy that is linear in the observation and initially uniform, and a hand-written
value function.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import pgx
from one_player import State, begin, unless_over

import jaxpgs
from jaxpgs.base import Params
from jaxpgs.networks import SplitApplyFn

_LOWEST = float(jnp.finfo(jnp.float32).min)


class Game(NamedTuple):
    """A game with chance.

    Attributes:
      env: the rules; `step` takes a key.
      after: `(state, action) -> (logits [C], afterstate)`, without a batch axis.
      draw: `(afterstate, outcome) -> state`, without a batch axis.
      params: the parameters of the policy.
      apply_fn: computes the policy and the value.
      max_moves: the number of moves after which a game is stopped.
      random_moves: the number of random moves before a player begins, which make positions harder.
    """

    env: Any
    after: Callable[[Any, chex.Array], tuple[chex.Array, Any]]
    draw: Callable[[Any, chex.Array], Any]
    params: Params
    apply_fn: SplitApplyFn
    max_moves: int
    random_moves: int = 0


def stochastic_fns(game: Game) -> tuple[Any, Any]:
    """Makes `decision_recurrent_fn` and `chance_recurrent_fn` for `mctx.stochastic_muzero_policy`.

    The value of an afterstate is the network's value of its observation plus the action's reward,
    which comes with the outcome.
    """

    def value(params: Params, afterstate: Any) -> chex.Array:
        seen = jax.vmap(game.env.observe)(afterstate)
        return game.apply_fn(params, seen)[1] + afterstate.rewards[:, 0]

    pieces = game.env, game.apply_fn, game.after, game.draw
    return jaxpgs.make_stochastic_fns(*pieces, afterstate_value=value)


def linear_policy(
    num_inputs: int, num_actions: int, value: Callable[[chex.Array], chex.Array]
) -> tuple[Params, SplitApplyFn]:
    """Returns a uniform policy, linear in the flat observation, with a given value function."""

    def torso(params: Params, observation: chex.Array) -> chex.Array:
        flat = observation.reshape(len(observation), -1).astype(jnp.float32)
        return jnp.concatenate([flat, jnp.ones((len(flat), 1))], axis=-1)

    params = {"policy_head": jnp.zeros((num_inputs + 1, num_actions))}
    return params, SplitApplyFn(
        torso,
        lambda params, features: features @ params["policy_head"],
        lambda params, features: value(features),
    )


# --- Pig -----------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """The present turn in a game of Pig.

    Attributes:
      total: `[]` the points that were thrown and are not banked yet.
      thrown: `[]` bool, whether the die was thrown and its side is not drawn yet (in afterstates).
    """

    total: chex.Array
    thrown: chex.Array


@dataclasses.dataclass(frozen=True)
class Pig:
    """The dice game Pig for one player: throw a die, or bank the points thrown; a 1 loses them.

    Action 0 banks the total, which is the reward, and action 1 throws. A game has `length`
    decisions.
    """

    length: int = 40
    num_players: int = 1
    num_actions: int = 2
    observation_shape: tuple[int, ...] = (4,)

    def init(self, key: chex.PRNGKey) -> State:
        """Returns the start, which is always the same."""
        del key
        return begin(Turn(jnp.float32(0), jnp.bool_(False)), self.num_actions)

    def after(self, state: State, action: chex.Array) -> tuple[chex.Array, State]:
        """Returns the logits of the six sides, and the afterstate, before the side is drawn."""
        throws, total = action == 1, state.inner.total
        fair = jnp.zeros(6)
        sure = jnp.where(jnp.arange(6) == 0, 0.0, _LOWEST)
        afterstate = dataclasses.replace(
            state,
            inner=Turn(jnp.where(throws, total, 0.0), throws),
            steps=state.steps + 1,
            rewards=jnp.where(throws | state.terminated, 0.0, total)[None],
        )
        return jnp.where(throws, fair, sure), afterstate

    def draw(self, afterstate: State, outcome: chex.Array) -> State:
        """Returns the state after the die has shown the side `outcome`, counted from 0."""
        total, thrown = afterstate.inner
        fallen = jnp.where(outcome == 0, 0.0, total + outcome + 1)
        return dataclasses.replace(
            afterstate,
            inner=Turn(jnp.where(thrown, fallen, total), jnp.bool_(False)),
            terminated=afterstate.terminated | (afterstate.steps >= self.length),
        )

    def step(self, state: State, action: chex.Array, key: chex.PRNGKey) -> State:
        """Plays an action; a finished game does not change and pays nothing."""
        logits, afterstate = self.after(state, action)
        return unless_over(state, self.draw(afterstate, jax.random.categorical(key, logits)))

    def observe(self, state: State) -> chex.Array:
        """Returns `[4]`: total / 20 and its square, `thrown`, and the share of decisions left."""
        total = state.inner.total / 20
        rest = (self.length - state.steps) / self.length
        return jnp.stack([total, total**2, state.inner.thrown.astype(jnp.float32), rest])


def pig(length: int = 40) -> Game:
    """Returns Pig; the value of a state is the total that can be banked."""
    env = Pig(length)
    params, apply_fn = linear_policy(4, 2, lambda features: 20 * features[:, 0])
    return Game(env, env.after, env.draw, params, apply_fn, length)


# --- 2048 ----------------------------------------------------------------------------------------

EMPTY_CELL = 10.0  # what an empty cell adds to the value of a state


def slide(board: chex.Array, action: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Slides the tiles of 2048.

    Args:
      board: `[16]` int32 logarithms of the tiles, 0 for an empty cell.
      action: 0 to 3 for left, up, right and down.

    Returns:
      The board, and the sum of the tiles that merged.
    """
    square = board.reshape(4, 4)
    turns = jnp.stack([jnp.rot90(square, k) for k in range(4)])
    lines, earned = jax.vmap(_slide_line)(turns[action])
    back = jnp.stack([jnp.rot90(lines, -k) for k in range(4)])
    return back[action].ravel(), jnp.sum(earned)


def _slide_line(line: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Slides four tiles to the left; each merges at most once, the leftmost first."""
    line = line[jnp.argsort(line == 0, stable=True)]
    earned = jnp.int32(0)
    for i in range(3):
        same = (line[i] > 0) & (line[i] == line[i + 1])
        earned += jnp.where(same, 2 ** (line[i] + 1), 0)
        moved = jnp.concatenate(
            [line[: i + 1].at[i].add(1), line[i + 2 :], jnp.zeros(1, jnp.int32)]
        )
        line = jnp.where(same, moved, line)
    return line, earned


def play2048(max_moves: int = 100, random_moves: int = 60) -> Game:
    """Returns pgx's 2048; the value of a state is `EMPTY_CELL` for each empty cell."""
    env = pgx.make("2048")

    def after(state: Any, action: chex.Array) -> tuple[chex.Array, Any]:
        board, earned = slide(state._board, action)
        free = jnp.where(board == 0, 0.0, _LOWEST)
        logits = jnp.concatenate([free + jnp.log(0.9), free + jnp.log(0.1)])
        rewards = jnp.where(state.terminated, 0.0, earned.astype(jnp.float32))[None]
        return jnp.maximum(logits, _LOWEST), state.replace(_board=board, rewards=rewards)

    def draw(afterstate: Any, outcome: chex.Array) -> Any:
        board = afterstate._board.at[outcome % 16].set(1 + outcome // 16)
        legal = jnp.stack([jnp.any(slide(board, jnp.int32(a))[0] != board) for a in range(4)])
        over = ~jnp.any(legal)
        return afterstate.replace(
            _board=board, legal_action_mask=legal | over, terminated=afterstate.terminated | over
        )

    def value(features: chex.Array) -> chex.Array:
        return EMPTY_CELL * jnp.sum(features[:, :-1].reshape(-1, 16, 31)[..., 0], axis=-1)

    params, apply_fn = linear_policy(16 * 31, 4, value)
    return Game(env, after, draw, params, apply_fn, max_moves, random_moves)
