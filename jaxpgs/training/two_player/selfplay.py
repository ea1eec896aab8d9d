"""Self-play of a search: many games at once, in one scan."""

import dataclasses
import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.adapters.environments import (
    RootFn,
    chance_key,
    gain_of,
    make_recurrent_fn,
    make_root_fn,
    step_with_key,
    step_with_keys,
)
from jaxpgs.base import Env, NodeStats, Params, RecurrentFn
from jaxpgs.checks import check_word
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.search import base_params_like, reset_adapted
from jaxpgs.training.runtime import sharding
from jaxpgs.training.runtime.settings import in_settings
from jaxpgs.training.two_player.experts import Decision, Expert, alike
from jaxpgs.training.two_player.root_data import map_actions, root_stats

VALUE_TARGETS = ("return", "search", "best")


@dataclasses.dataclass(frozen=True)
class Start:
    """How new games start.

    Attributes:
      max_random_moves: M. Half of the games start after one random move, the others after a random
        number of them from 1 to M. No random move ends a game. With 0, all games start at the
        beginning.
      start_fraction: fraction of the games, at most half, that start at the beginning whatever M
        is; they reduce the half with 1 to M random moves.
      resign_fraction: fraction of the games in which players may resign.
    """

    max_random_moves: int = 0
    start_fraction: float = 0.0
    resign_fraction: chex.Array | float = 0.0


@dataclasses.dataclass(frozen=True)
class Moves:
    """How games are played, and when they end.

    Attributes:
      sampled_moves: how many moves of a game are sampled from the expert's distribution; later
        moves are its best actions.
      max_moves: moves of a game, including random ones at its start, after which it is cut off with
        the rewards so far, which is a draw if only the last move is rewarded; None for no limit.
      keep_adapted: whether the parameters that a search adapts carry over to the game's next move
        (Anthony et al. 2019, section 3); if not, each search starts from the network's. A new game
        starts from the network's parameters, and so does every call, since the network has changed.
      fast: a quicker search for the moves that the expert does not make (playout cap randomisation;
        Wu 2019, section 3.1). Its policy is not used as a target. It may be of another kind, but
        both searches must return what is kept. None: the expert makes all moves.
      full_share: with `fast`, the fraction of the steps in which the expert moves, above 0 and at
        most 1. If this is no whole number of steps, it holds on average. Deviations: the paper
        decides for each move of each game; here all games share the decision, since a batch takes
        as long as its longest search. The paper learns from full searches alone; here the value
        learns from all moves.
    """

    sampled_moves: chex.Array | int = 30
    max_moves: int | None = None
    keep_adapted: bool = False
    fast: Expert | None = None
    full_share: chex.Array | float = 0.25


@dataclasses.dataclass(frozen=True)
class Kept:
    """Which data of the games are kept for learning.

    Attributes:
      value_target: "return" for the game's return, or "search" for the expert's value of the
        position. "best" is the game's return as long as only best actions follow; at the first
        other action it is the expert's value of the position where this was taken. So exploratory
        moves show their consequences without making the targets of earlier positions worse.
      keep_played: whether to fill in `Experience.played`.
      keep_root: whether to fill in `Experience.root`, from the expert's `visits` and `qvalues`.
    """

    value_target: str = "return"
    keep_played: bool = False
    keep_root: bool = False


class SelfPlayGames(NamedTuple):
    """G games in progress.

    Attributes:
      state: the positions, none finished.
      move: `[G]` int32, moves made so far.
      may_resign: `[G]` bool, whether resignation is enabled in this game.
      lowest: `[G, P]` the lowest search value of each of P players at its own moves.
    """

    state: Any
    move: chex.Array
    may_resign: chex.Array
    lowest: chex.Array


class Played(NamedTuple):
    """The moves of the games, for learning models; `[...]` are any batch axes.

    Attributes:
      state: `[...]` the positions.
      action: `[...]` int32, the actions taken there.
      reward: `[...]` the rewards of the players who took them.
      finished: `[...]` bool, whether the game ended with them.
    """

    state: Any
    action: chex.Array
    reward: chex.Array
    finished: chex.Array


class Experience(NamedTuple):
    """Positions with their targets; `[...]` stands for any batch axes.

    Attributes:
      observation: `[..., *observation_shape]`.
      legal: `[..., A]` bool, in the network's frame; none if the game was over at its start.
      policy: `[..., A]` target of the policy, in the network's frame; zeros if there is none, as
        after a fast search.
      value: `[...]` target of the value: the known part of the game's return from the view of the
        player to move.
      open: `[...]` factor of the unknown part: the full target is `value` plus `open` times the
        return of the game's next position to be played. 0 once the game is over.
      played: the moves, None without `Kept.keep_played`.
      root: statistics of the search at its root, with axes `[..., A]` in the network's frame; None
        without `Kept.keep_root`.
    """

    observation: chex.Array
    legal: chex.Array
    policy: chex.Array
    value: chex.Array
    open: chex.Array
    played: Played | None = None
    root: NodeStats | None = None


class Report(NamedTuple):
    """What happened in S steps of G games.

    Attributes:
      finished: `[S, G]` bool, whether a game ended here.
      resigned: `[S, G]` bool, whether it ended by resignation.
      length: `[S, G]` int32, moves of the game so far.
      winner_lowest: `[S, G]` if a game without resignation was won, the lowest search value of its
        winner; NaN elsewhere.
      best_share: `[S, G]` the largest probability of the policy.
      num_evaluations: `[S, G]` int32, network evaluations of the search and its root.
    """

    finished: chex.Array
    resigned: chex.Array
    length: chex.Array
    winner_lowest: chex.Array
    best_share: chex.Array
    num_evaluations: chex.Array


@in_settings
def init_games(
    env: Env, rng_key: chex.PRNGKey, num_games: int, start: Start = Start()
) -> SelfPlayGames:
    """Starts games from positions of uniformly random play.

    Tournaments force every opening, good or bad, and a search evaluates bad moves as well as good
    ones, so the training data must contain the positions after both.

    Args:
      env: the environment.
      rng_key: a key, consumed.
      num_games: G.
      start: how they start.

    Returns:
      G games.
    """
    start_key, resign_key = jax.random.split(rng_key)
    step, most = step_with_key(env), start.max_random_moves

    def begin(rng_key: chex.PRNGKey) -> tuple[Any, chex.Array]:
        init_key, count_key, moves_key = jax.random.split(rng_key, 3)
        # One uniform number decides: below 1/2 one move, in the top `start_fraction` none, and in
        # between a number from 1 to M.
        coin, count = jax.random.uniform(count_key, (2,))
        count = 1 + jnp.floor(count * most).astype(jnp.int32)
        count = jnp.where(coin < 0.5, 1, count)
        count = jnp.where(coin < 1 - start.start_fraction, count, 0)

        # All games of a batch scan over M moves, and each keeps its own number of them.
        def move(carry: Any, inputs: tuple[chex.Array, chex.PRNGKey]) -> tuple[Any, None]:
            state, made = carry
            number, rng_key = inputs
            logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
            action = jax.random.categorical(rng_key, logits)
            after = step(state, action, chance_key(rng_key))
            # A move that would end the game is skipped, so that there is a position to search.
            take = (number < count) & ~after.terminated
            state = trees.where(take, after, state)
            return (state, made + take.astype(jnp.int32)), None

        inputs = (jnp.arange(most), jax.random.split(moves_key, most))
        return jax.lax.scan(move, (env.init(init_key), jnp.int32(0)), inputs)[0]

    state, made = jax.vmap(begin)(sharding.own_keys(start_key, num_games))
    # Whether resignation is enabled is drawn at the start, independently of the moves, so that the
    # games without it are an unbiased sample.
    luck = sharding.own_rows(lambda number: jax.random.uniform(resign_key, (number,)), num_games)
    return SelfPlayGames(
        state=state,
        move=made,
        may_resign=luck < start.resign_fraction,
        lowest=jnp.full((num_games, env.num_players), jnp.inf, jnp.float32),
    )


@in_settings
def play(
    env: Env,
    apply_fn: ApplyFn,
    expert: Expert,
    params: Params,
    rng_key: chex.PRNGKey,
    games: SelfPlayGames,
    num_steps: int,
    *,
    start: Start = Start(),
    moves: Moves = Moves(),
    kept: Kept = Kept(),
    resign_below: chex.Array | float = -jnp.inf,
    model_fns: tuple[RootFn, RecurrentFn] | None = None,
) -> tuple[SelfPlayGames, Experience, Report]:
    """Plays `num_steps` moves in every game, and starts a new game when one ends.

    Args:
      env: the environment.
      apply_fn: the network.
      expert: the search that moves for both sides.
      params: the network's parameters.
      rng_key: a key, consumed.
      games: G games.
      num_steps: moves to play in each game, S.
      start: how new games start.
      moves: how games are played, and when they end.
      kept: what is kept of them.
      resign_below: the player to move resigns if the search's value is below this.
      model_fns: `root_fn` and `recurrent_fn` of the expert's search, such as
        `make_model_fns(model, env)`; if None, it uses the environment's rules and the network.

    Returns:
      The games to continue with, and `Experience` and `Report` with batch axes `[S, G]`.

    Raises:
      ValueError: if there are more than two players, `kept.value_target` is unknown,
        `moves.keep_adapted` is set but the expert or the fast search adapts nothing, or
        `kept.keep_root` is set but one of them does not return visits, or `env.network_policy` does
        not permute actions.
      TypeError: if an argument is unknown, or is a field of one of the settings.
    """
    check_word("play", "value_target", kept.value_target, VALUE_TARGETS)
    # Without a model the search plans with the rules themselves.
    root_fn, recurrent_fn = model_fns or (
        make_root_fn(env, apply_fn), make_recurrent_fn(env, apply_fn),
    )  # fmt: skip
    setting = _Setting(env, params, expert, root_fn, recurrent_fn, start, moves, kept, resign_below)
    # [S]: one draw for all games of a step, so that `lax.cond` can leave out the other search.
    is_full = jnp.ones(num_steps, bool)
    if moves.fast is not None:
        rng_key, full_key = jax.random.split(rng_key)
        is_full = draw_full(full_key, num_steps, moves.full_share)
    # This key is only used for shapes, so it is still unused below.
    adapted = _network_own(setting, rng_key, games.state) if moves.keep_adapted else {}
    inputs = (jax.random.split(rng_key, num_steps), is_full)
    (games, _), seen = jax.lax.scan(functools.partial(_step, setting), (games, adapted), inputs)
    experience, reward, discount, strayed, report = seen
    # `_step` has filled in the search's values already; the other targets need later results.
    if kept.value_target == "search":
        return games, experience, report

    return games, _with_returns(experience, reward, discount, strayed), report


class _Setting(NamedTuple):
    """The prepared arguments of `play`, which do not change while games are played."""

    env: Env
    params: Params
    expert: Expert
    root_fn: RootFn
    recurrent_fn: RecurrentFn
    start: Start
    moves: Moves
    kept: Kept
    resign_below: chex.Array | float


def _decide(
    setting: _Setting,
    rng_key: chex.PRNGKey,
    state: Any,
    is_full: chex.Array | bool,
    **adapted: Params,
) -> tuple[Decision, NodeStats | None]:
    """Searches positions, in full or fast."""
    legal, expert, fast = state.legal_action_mask, setting.expert, setting.moves.fast
    # Devices have the same key: with a key for each game their noise is independent, and does not
    # depend on the number of devices.
    if sharding.is_shared():
        rng_key = sharding.own_keys(rng_key, len(legal))
    root = setting.root_fn(setting.params, sharding.one_key(rng_key), state)
    data = setting.params, rng_key, root, setting.recurrent_fn, ~legal
    if fast is None:
        decision = expert(*data, **adapted)
    else:
        # A scalar condition is a real branch; with one for each game both searches would run.
        full, quick = alike(*(functools.partial(f, *data, **adapted) for f in (expert, fast)))
        decision = jax.lax.cond(is_full, full, quick)
    return decision, root_stats(root, decision, legal) if setting.kept.keep_root else None


def _network_own(setting: _Setting, rng_key: chex.PRNGKey, state: Any) -> dict[str, Params]:
    """Returns the network's own values of the parameters that a search adapts."""
    decide = functools.partial(_decide, setting)
    # The search is only traced, to find out which parameters it adapts.
    adapted = jax.eval_shape(decide, rng_key, state, True)[0].adapted_params
    if not jax.tree.leaves(adapted):
        raise ValueError(
            "keep_adapted needs an expert that adapts parameters, such as PGS, and the expert of "
            "fast moves, if there is one, must adapt the same parameters."
        )
    return {"adapted_params": base_params_like(adapted, setting.params)}


def _step(
    setting: _Setting,
    carry: tuple[SelfPlayGames, dict],
    inputs: tuple[chex.PRNGKey, chex.Array],
) -> tuple[tuple[SelfPlayGames, dict], Any]:
    """Plays a move in every game, and restarts those that end."""
    env, (games, adapted), (rng_key, is_full) = setting.env, carry, inputs
    search_key, reset_key = jax.random.split(rng_key)
    state = games.state
    # Some games are over at the start, and nothing is to be learned there.
    live = ~state.terminated[:, None]
    legal = state.legal_action_mask & live
    decision, root = _decide(setting, search_key, state, is_full, **adapted)
    # Everything that is kept of games has 32 bits, also if the network has 64.
    decision = decision._replace(value=decision.value.astype(jnp.float32))
    # Exploration: the first moves of a game are sampled, the later ones are the best.
    action = jnp.where(games.move < setting.moves.sampled_moves, decision.action, decision.best)
    chances = sharding.own_keys(chance_key(rng_key), len(action))
    after = step_with_keys(env)(state, action, chances)
    mover = state.current_player
    # [G, P]: whose move it is. Each player remembers the lowest value of its own moves.
    own = mover[:, None] == jnp.arange(games.lowest.shape[1])[None]
    lowest = jnp.where(own, jnp.minimum(games.lowest, decision.value[:, None]), games.lowest)

    # A player who resigns loses, whatever the reward of its move; nothing counts after the end.
    resigned = games.may_resign & (decision.value < setting.resign_below)
    finished = after.terminated | resigned
    if setting.moves.max_moves is not None:
        finished |= games.move + 1 >= setting.moves.max_moves
    reward = jnp.where(resigned, -1.0, gain_of(env, mover, state, after))
    discount = jnp.where(after.current_player == mover, 1.0, -1.0)
    discount = jnp.where(finished, 0.0, discount)

    # A fast search is too weak to imitate; zeros mark that there is no target.
    policy = jnp.where(is_full & live, decision.policy, 0.0)
    # Targets are in the frame in which the network sees the board.
    if hasattr(env, "network_policy"):
        turn = functools.partial(jax.vmap(env.network_policy), state)
        policy, legal = turn(policy), turn(legal.astype(policy.dtype)) > 0
        root = None if root is None else map_actions(turn, root)
    observation = jax.vmap(env.observe)(state)

    # In games without resignation the winner's lowest value shows if it would have resigned.
    won = own == (reward > 0)[:, None]
    winner_lowest = jnp.min(jnp.where(won, lowest, jnp.inf), axis=-1)
    honest = after.terminated & ~games.may_resign & (reward != 0)
    report = Report(
        finished=finished,
        resigned=resigned,
        length=games.move + 1,
        winner_lowest=jnp.where(honest, winner_lowest, jnp.nan),
        best_share=jnp.max(decision.policy, axis=-1),
        num_evaluations=jnp.broadcast_to(decision.num_evaluations + 1, mover.shape),
    )

    # New games are made for all and used where one ended: under `jit` shapes cannot vary.
    fresh = init_games(env, reset_key, len(reward), setting.start)
    going_on = SelfPlayGames(after, games.move + 1, games.may_resign, lowest)
    games = trees.where(finished, fresh, going_on)
    # After the end of a game the next search belongs to another game and starts from the network.
    if setting.moves.keep_adapted:
        own = reset_adapted(decision.adapted_params, setting.params, finished)
        adapted = {"adapted_params": own}
    played = Played(state, action, reward, finished) if setting.kept.keep_played else None
    # An invalid reward (NaN) makes every kind of target NaN, so that training stops.
    wrong = jnp.isnan(reward)
    value, none_open = jnp.where(wrong, jnp.nan, decision.value), jnp.where(wrong, 0.0, 0 * reward)
    seen = Experience(observation, legal, policy, value, none_open, played, root)
    # From here on the game does not show the result of best play.
    strayed = (action != decision.best) & (setting.kept.value_target == "best")
    return (games, adapted), (seen, reward, discount, strayed, report)


def count_games(report: Report) -> dict[str, chex.Array]:
    """Returns metrics of the games (how many ended, and how) and of the searches."""
    finished = jnp.maximum(jnp.sum(report.finished), 1)
    return {
        "finished_games": jnp.sum(report.finished),
        "mean_length": jnp.sum(report.finished * report.length) / finished,
        "resigned": jnp.sum(report.resigned) / finished,
        "best_share": jnp.mean(report.best_share),
        "evaluations_per_move": jnp.mean(report.num_evaluations),
    }


def draw_full(rng_key: chex.PRNGKey, num_steps: int, share: float) -> chex.Array:
    """Draws `[S]` bool, which steps are searched in full, as close to their share as possible."""
    count_key, order_key = jax.random.split(rng_key)
    # Rounded up or down at random, so that the mean is right if the count is no whole number.
    count = jnp.floor(share * num_steps + jax.random.uniform(count_key))
    return jax.random.permutation(order_key, num_steps) < count.astype(jnp.int32)


def _with_returns(
    experience: Experience, reward: chex.Array, discount: chex.Array, strayed: chex.Array
) -> Experience:
    """Fills in the known parts of the games' returns as targets of the value.

    Args:
      experience: `[S, G]` steps, with the search's values.
      reward: `[S, G]` rewards of the players who moved.
      discount: `[S, G]` factors of the next position's return for the player who moved.
      strayed: `[S, G]` bool, where the search's value is the target, since the action was not best.
    """

    # G_t = reward + discount * G_(t+1), from the last step back. `is_open` is the product of the
    # discounts: how much of the return is still to come; 0 once the game has ended.
    def back(later: tuple[chex.Array, chex.Array], now: tuple[chex.Array, ...]) -> Any:
        reward, discount, strayed, searched = now
        value, is_open = reward + discount * later[0], discount * later[1]
        target = (jnp.where(strayed, searched, value), jnp.where(strayed, 0.0, is_open))
        return target, target

    # Nothing is known after the last step, so all of that return is open.
    nothing = (jnp.zeros_like(reward[0]), jnp.ones_like(reward[0]))
    moves = (reward, discount, strayed, experience.value)
    _, (value, is_open) = jax.lax.scan(back, nothing, moves, reverse=True)
    return experience._replace(value=value, open=is_open)
