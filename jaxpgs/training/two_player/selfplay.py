"""Self-play of a search against itself: many games at once, in one scan."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

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

VALUE_TARGETS = ("return", "search", "best")


@dataclasses.dataclass(frozen=True)
class Start:
    """How new games start.

    Attributes:
      max_random_moves: M. Half of the games start after one random move, the others after a number
        of them drawn from 1 to M. No random move ends a game. 0: all start at the beginning.
      start_fraction: share of the games, at most half, that start at the beginning whatever M is;
        they are taken from those with several random moves.
      resign_fraction: share of the games in which players may resign.
    """

    max_random_moves: int = 0
    start_fraction: float = 0.0
    resign_fraction: chex.Array | float = 0.0


@dataclasses.dataclass(frozen=True)
class Moves:
    """How games are played, and when they end.

    Attributes:
      sampled_moves: moves of a game that are drawn from the expert's distribution; later ones are
        its best.
      max_moves: moves of a game, random ones at its start included, after which it ends as it
        stands, a draw where only the last move pays; None for as many as it takes.
      keep_adapted: whether the parameters that a search adapts go on to the game's next move
        (Anthony et al. 2019, section 3), or each search starts from the network's. A new game
        starts from the network's, and so does every call, as the network has learned since.
      fast: a quicker search, which moves where the expert does not (playout cap randomisation; Wu
        2019, section 3.1). What it says of the policy is not kept. It may be of another kind, but
        what is kept of searches both must tell. None: the expert always moves.
      full_share: with `fast`, the share of the steps in which the expert moves, above 0 and at most
        1. Where it is no whole number of steps, it is so on average. Deviations: the paper draws
        for each move of each game, and here all games share a draw, as a batch takes as long as its
        longest search; it learns from full searches alone, and here the value learns from all.
    """

    sampled_moves: chex.Array | int = 30
    max_moves: int | None = None
    keep_adapted: bool = False
    fast: Expert | None = None
    full_share: chex.Array | float = 0.25


@dataclasses.dataclass(frozen=True)
class Kept:
    """What is kept of the games, to learn from.

    Attributes:
      value_target: "return" for the game's, "search" for the expert's value of the position; "best"
        for the game's as long as only best actions follow, and from the first other one on the
        expert's value of the position where it was taken. So random moves can show what they lead
        to without making the positions before them worse.
      keep_played: whether to fill in `Experience.played`.
      keep_root: whether to fill in `Experience.root`, from the expert's `visits` and `qvalues`.
    """

    value_target: str = "return"
    keep_played: bool = False
    keep_root: bool = False


class SelfPlayGames(NamedTuple):
    """G games in play.

    Attributes:
      state: the positions, none finished.
      move: `[G]` int32, moves made so far.
      may_resign: `[G]` bool, whether resignation is on in this game.
      lowest: `[G, P]` the lowest value that each of P players has seen on its own moves.
    """

    state: Any
    move: chex.Array
    may_resign: chex.Array
    lowest: chex.Array


class Played(NamedTuple):
    """What was played, for models that learn what actions lead to; `[...]` are any batch axes.

    Attributes:
      state: `[...]` the positions.
      action: `[...]` int32, the actions taken there.
      reward: `[...]` what they paid their mover.
      finished: `[...]` bool, whether the game ended with them.
    """

    state: Any
    action: chex.Array
    reward: chex.Array
    finished: chex.Array


class Experience(NamedTuple):
    """Positions with what they teach; `[...]` stands for any batch axes.

    Attributes:
      observation: `[..., *observation_shape]`.
      legal: `[..., A]` bool, in the network's frame.
      policy: `[..., A]` target of the policy, in the network's frame; zeros where there is none, as
        after a fast search.
      value: `[...]` target of the value: the game's return from the view of the player to move, as
        far as it is known.
      open: `[...]` what is missing: the target is `value` plus `open` times the return of the
        game's next position to come. 0 once the game is over.
      played: what was played, None unless somebody asks.
      root: what the search knew at its root, with axes `[..., A]` in the network's frame; None
        unless somebody asks.
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
      resigned: `[S, G]` bool, whether by resignation.
      length: `[S, G]` int32, moves of the game so far.
      winner_lowest: `[S, G]` where a game without resignation was won, the lowest value that its
        winner had seen; NaN elsewhere.
      best_share: `[S, G]` the share of the policy that its largest entry has.
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

    Tournaments force every opening, good or bad, and a search looks at bad moves as well as good
    ones, so training must know what follows each.

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
        # One coin decides: its lower half means one move, its top `start_fraction` none, what is
        # between a number from 1 to M.
        coin, count = jax.random.uniform(count_key, (2,))
        count = 1 + jnp.floor(count * most).astype(jnp.int32)
        count = jnp.where(coin < 0.5, 1, count)
        count = jnp.where(coin < 1 - start.start_fraction, count, 0)

        # All games of a batch scan over M moves, and each keeps as many as it drew.
        def move(carry: Any, inputs: tuple[chex.Array, chex.PRNGKey]) -> tuple[Any, None]:
            state, made = carry
            number, rng_key = inputs
            logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
            action = jax.random.categorical(rng_key, logits)
            after = step(state, action, chance_key(rng_key))
            # A move that would end the game is left out, so that there is a position to search.
            take = (number < count) & ~after.terminated
            state = trees.where(take, after, state)
            return (state, made + take.astype(jnp.int32)), None

        inputs = (jnp.arange(most), jax.random.split(moves_key, most))
        return jax.lax.scan(move, (env.init(init_key), jnp.int32(0)), inputs)[0]

    state, made = jax.vmap(begin)(sharding.own_keys(start_key, num_games))
    # Who may resign is drawn at the start and apart from the moves, so that the games in which
    # nobody may are a fair sample.
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
    """Plays `num_steps` moves in every game, starting a new game where one ends.

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
      resign_below: the player to move resigns where the search's value is below this.
      model_fns: what the expert plans with, such as `make_model_fns(model, env)`; the rules of the
        environment and the network if None.

    Returns:
      The games to go on with, `Experience` and `Report` with batch axes `[S, G]`.

    Raises:
      ValueError: if there are more than two players, `moves.keep_adapted` is set for an expert that
        adapts nothing, `kept.keep_root` for one that tells no visits, or either for a fast one that
        does not, or `kept.value_target` is unknown.
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
    # Shapes alone are read with this key, so it is still unused below.
    adapted = _network_own(setting, rng_key, games.state) if moves.keep_adapted else {}
    inputs = (jax.random.split(rng_key, num_steps), is_full)
    (games, _), seen = jax.lax.scan(functools.partial(_step, setting), (games, adapted), inputs)
    experience, reward, discount, strayed, report = seen
    # `_step` has filled in the search's values already; the others need what came later.
    if kept.value_target == "search":
        return games, experience, report

    return games, _with_returns(experience, reward, discount, strayed), report


class _Setting(NamedTuple):
    """What does not change while games are played; the arguments of `play`, made ready."""

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
    # Devices have the same key: a key for each game keeps their noise apart, and the same however
    # many devices there are.
    if sharding.is_shared():
        rng_key = sharding.own_keys(rng_key, len(legal))
    root = setting.root_fn(setting.params, sharding.one_key(rng_key), state)
    data = setting.params, rng_key, root, setting.recurrent_fn, ~legal
    if fast is None:
        decision = expert(*data, **adapted)
    else:
        # A condition without axes is a branch; with one for each game both searches would run.
        full, quick = alike(*(functools.partial(f, *data, **adapted) for f in (expert, fast)))
        decision = jax.lax.cond(is_full, full, quick)
    return decision, root_stats(root, decision, legal) if setting.kept.keep_root else None


def _network_own(setting: _Setting, rng_key: chex.PRNGKey, state: Any) -> dict[str, Params]:
    """Returns what a search adapts, as the network has it."""
    decide = functools.partial(_decide, setting)
    # A search that is traced, not run, tells which parameters it adapts.
    adapted = jax.eval_shape(decide, rng_key, state, True)[0].adapted_params
    if not jax.tree.leaves(adapted):
        raise ValueError(
            "keep_adapted needs an expert that adapts parameters, such as PGS, and a fast one, if "
            "any, that adapts the same."
        )
    return {"adapted_params": base_params_like(adapted, setting.params)}


def _step(
    setting: _Setting,
    carry: tuple[SelfPlayGames, dict],
    inputs: tuple[chex.PRNGKey, chex.Array],
) -> tuple[tuple[SelfPlayGames, dict], Any]:
    """Plays a move in every game, and starts anew those that end."""
    env, (games, adapted), (rng_key, is_full) = setting.env, carry, inputs
    search_key, reset_key = jax.random.split(rng_key)
    state = games.state
    legal = state.legal_action_mask
    decision, root = _decide(setting, search_key, state, is_full, **adapted)
    # Exploration: the first moves of a game are drawn, the later ones are the best.
    action = jnp.where(games.move < setting.moves.sampled_moves, decision.action, decision.best)
    chances = sharding.own_keys(chance_key(rng_key), len(action))
    after = step_with_keys(env)(state, action, chances)
    mover = state.current_player
    # [G, P]: whose move it is. Each player remembers the lowest value of its own moves.
    own = mover[:, None] == jnp.arange(games.lowest.shape[1])[None]
    lowest = jnp.where(own, jnp.minimum(games.lowest, decision.value[:, None]), games.lowest)

    # Who resigns loses, whatever its move would have paid; behind an end nothing is counted.
    resigned = games.may_resign & (decision.value < setting.resign_below)
    finished = after.terminated | resigned
    if setting.moves.max_moves is not None:
        finished |= games.move + 1 >= setting.moves.max_moves
    reward = jnp.where(resigned, -1.0, gain_of(env, mover, state, after))
    discount = jnp.where(after.current_player == mover, 1.0, -1.0)
    discount = jnp.where(finished, 0.0, discount)

    # A fast search is too weak to imitate; zeros mark that there is no target.
    policy = jnp.where(is_full, decision.policy, 0.0)
    # What the network learns is in the frame in which it sees the board.
    if hasattr(env, "network_policy"):
        turn = functools.partial(jax.vmap(env.network_policy), state)
        policy, legal = turn(policy), turn(legal)
        root = None if root is None else map_actions(turn, root)
    observation = jax.vmap(env.observe)(state)

    # In a game without resignation the winner's lowest value tells what it would have lost.
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

    # New games are made for all and taken by those that ended: under `jit` shapes cannot vary.
    fresh = init_games(env, reset_key, len(reward), setting.start)
    going_on = SelfPlayGames(after, games.move + 1, games.may_resign, lowest)
    games = trees.where(finished, fresh, going_on)
    # A search that follows the end of a game belongs to another one and starts from the network.
    if setting.moves.keep_adapted:
        own = reset_adapted(decision.adapted_params, setting.params, finished)
        adapted = {"adapted_params": own}
    played = Played(state, action, reward, finished) if setting.kept.keep_played else None
    # A reward that cannot be meant spoils the target, whatever that is, so that training ends.
    wrong = jnp.isnan(reward)
    value, none_open = jnp.where(wrong, jnp.nan, decision.value), jnp.where(wrong, 0.0, 0 * reward)
    seen = Experience(observation, legal, policy, value, none_open, played, root)
    # From here on the game does not show what best play leads to.
    strayed = (action != decision.best) & (setting.kept.value_target == "best")
    return (games, adapted), (seen, reward, discount, strayed, report)


def count_games(report: Report) -> dict[str, chex.Array]:
    """Returns the metrics of the games: how many ended, how, and what the searches were like."""
    finished = jnp.maximum(jnp.sum(report.finished), 1)
    return {
        "finished_games": jnp.sum(report.finished),
        "mean_length": jnp.sum(report.finished * report.length) / finished,
        "resigned": jnp.sum(report.resigned) / finished,
        "best_share": jnp.mean(report.best_share),
        "evaluations_per_move": jnp.mean(report.num_evaluations),
    }


def draw_full(rng_key: chex.PRNGKey, num_steps: int, share: float) -> chex.Array:
    """Draws `[S]` bool which steps are searched in full, as near to a share of them as may be."""
    count_key, order_key = jax.random.split(rng_key)
    # Rounded up or down at random, so that the mean is the share where it is no whole number.
    count = jnp.floor(share * num_steps + jax.random.uniform(count_key))
    return jax.random.permutation(order_key, num_steps) < count.astype(jnp.int32)


def _with_returns(
    experience: Experience, reward: chex.Array, discount: chex.Array, strayed: chex.Array
) -> Experience:
    """Fills in the games' returns as targets of the value, as far as they are known.

    Args:
      experience: `[S, G]` steps whose values are the search's.
      reward: `[S, G]` what each paid its mover.
      discount: `[S, G]` what the next position's return counts to the mover.
      strayed: `[S, G]` bool, where the search's value is the target, as the game was left.
    """

    # G_t = reward + discount * G_(t+1), from the last step back. `is_open` is the product of the
    # discounts: how much of the return is still to come; 0 once the game has ended.
    def back(later: tuple[chex.Array, chex.Array], now: tuple[chex.Array, ...]) -> Any:
        reward, discount, strayed, searched = now
        value, is_open = reward + discount * later[0], discount * later[1]
        target = (jnp.where(strayed, searched, value), jnp.where(strayed, 0.0, is_open))
        return target, target

    # Behind the last step nothing is known, so all of that return is open.
    nothing = (jnp.zeros_like(reward[0]), jnp.ones_like(reward[0]))
    moves = (reward, discount, strayed, experience.value)
    _, (value, is_open) = jax.lax.scan(back, nothing, moves, reverse=True)
    return experience._replace(value=value, open=is_open)


def root_stats(root: mctx.RootFnOutput, decision: Decision, legal: chex.Array) -> NodeStats:
    """Puts together what a search knows at its root.

    Raises:
      ValueError: if the expert does not tell it.
    """
    if decision.visits is None or decision.qvalues is None:
        raise ValueError(
            "keep_root, which objectives that read values need, wants an expert that fills in "
            "Decision.visits and Decision.qvalues, and a fast one, if any, that does so; here one "
            "does not."
        )
    # Without a visit a Q-value may hold anything, and 0 times NaN would still be NaN.
    qvalues = jnp.where(decision.visits > 0, decision.qvalues, 0.0)
    return NodeStats(
        prior_logits=root.prior_logits,
        value=root.value,
        visits=decision.visits,
        value_sum=decision.visits * qvalues,
        valid=legal,
    )


def map_actions(fn: Callable[[chex.Array], chex.Array], root: NodeStats) -> NodeStats:
    """Applies a permutation of the actions to all of a root's statistics that have them."""
    return root._replace(
        prior_logits=fn(root.prior_logits),
        visits=fn(root.visits),
        value_sum=fn(root.value_sum),
        valid=fn(root.valid),
    )
