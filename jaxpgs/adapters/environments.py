"""Adapters between an environment, a network and a search: `root_fn`, `recurrent_fn` and `plan`.

The first two follow mctx's interface, so they work with `mctx.muzero_policy` and with every search
of this library. The environment may be from `jaxpgs.envs` or from pgx.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import chex
import jax
import jax.numpy as jnp
import mctx
from flax import nnx

from jaxpgs.arrays import broadcast_keys, statistics_dtype, values_like
from jaxpgs.base import Embedding, Env, Expansion, Params, RecurrentFn, SplitRecurrentFn
from jaxpgs.checks import check_word
from jaxpgs.networks.functional import PARTS, ApplyFn, SplitApplyFn, functional_call
from jaxpgs.search.models.dataflow import depends

_CHANCE = 2**32 - 1  # larger than the index of any key that is split off elsewhere
LONGEST_GAME = 4096  # moves after which a game is considered not to end
# Advice for a game in which one player does not lose what the other gains.
OPPOSED = "Give each player its reward minus the other's, such as jnp.stack([a - b, b - a])."
RootFn = Callable[[Params, chex.PRNGKey, Embedding], mctx.RootFnOutput]
Output = TypeVar("Output")  # of a search of this library or of mctx


def make_root_fn(env: Env, apply_fn: ApplyFn) -> RootFn:
    """Makes the function that evaluates the states to search from.

    Args:
      env: an environment of `jaxpgs.envs` or of pgx.
      apply_fn: the network, `(params, observation [B, ...]) -> (logits [B, A], value [B])`. The
        value is from the view of the player to move.

    Returns:
      `root_fn(params, rng_key, state)`, which takes a batch of B states and returns an
      `mctx.RootFnOutput`. The logits of illegal actions are the lowest float. Values have at least
      32 bits, and are 0 for finished games. The embedding is the state itself.

    Example:
      >>> root = jaxpgs.make_root_fn(env, apply_fn)(params, rng_key, states)
      >>> root.prior_logits.shape, root.value.shape
      ((2, 9), (2,))
    """

    def root_fn(params: Params, rng_key: chex.PRNGKey, state: Embedding) -> mctx.RootFnOutput:
        del rng_key
        logits, value = apply_fn(params, jax.vmap(env.observe)(state))
        return mctx.RootFnOutput(
            prior_logits=mask_logits(env, logits, state),
            value=mask_value(value, state),
            embedding=state,
        )

    return root_fn


def make_recurrent_fn(env: Env, apply_fn: ApplyFn) -> RecurrentFn:
    """Makes the function that plays one action in each state and evaluates where it leads.

    The reward is that of the player who moves. The discount is -1 if the other player moves next, 1
    if the same player does, and 0 if the episode ended, so it is right at every depth, for one
    player and for two. Illegal actions are masked at every depth (mctx masks only the root).

    Games of two players must be zero-sum, since a value is one number: the rewards sum to 0, or
    only one player gets a reward, which counts as a loss of the other. Under `jax.jit`, which
    cannot raise errors, other rewards become NaN; a search counts these in `not_finite`.

    Chance is sampled with the key if `env.step` takes a third argument named `key`, as in pgx. With
    `mode="rollouts"` a search samples again in every simulation, so that its Q-values are means
    over chance. In a tree, and in mctx's searches, the first sample is kept, since each node is one
    state: the search plans as if it knew the dice. To avoid this, use `stochastic_mcts_policy` or
    `mctx.stochastic_muzero_policy` with the models of `make_stochastic_fns`.

    Args:
      env: an environment of `jaxpgs.envs` or of pgx, of one player or of two, numbered 0 and 1.
        Two players may move in any order.
      apply_fn: as in `make_root_fn`.

    Returns:
      `recurrent_fn(params, rng_key, action [B], embedding)`, which returns
      `(mctx.RecurrentFnOutput, embedding)`. If `apply_fn` is a `networks.SplitApplyFn`, as
      `networks.functional` returns it for the modules of this library, it is a `SplitRecurrentFn`,
      of which a search keeps the results of the first part.

    Raises:
      ValueError: if there are more than two players. `recurrent_fn` raises it if the rewards have
        another shape, or are not zero-sum.

    Example:
      >>> model = jaxpgs.make_recurrent_fn(env, apply_fn)
      >>> step, after = model(params, rng_key, jnp.array([0, 4]), states)
      >>> step.discount  # the other player moves next
      Array([-1., -1.], dtype=float32)
    """

    check_players("make_recurrent_fn", env)
    step = step_with_keys(env)

    def play(
        rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding
    ) -> tuple[chex.Array, chex.Array, Embedding]:
        # The game's part of a step, shared by networks in one piece and in parts.
        state = step(embedding, action, rng_key)
        return *reward_and_discount(env, embedding, state), state

    def recurrent_fn(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding
    ) -> tuple[mctx.RecurrentFnOutput, Embedding]:
        reward, discount, state = play(rng_key, action, embedding)
        logits, value = apply_fn(params, jax.vmap(env.observe)(state))
        dtype = statistics_dtype(value)
        output = mctx.RecurrentFnOutput(
            reward=reward.astype(dtype),
            discount=discount.astype(dtype),
            prior_logits=mask_logits(env, logits, state),
            value=mask_value(value, state),
        )
        return output, state

    if not isinstance(apply_fn, SplitApplyFn):
        return recurrent_fn

    def expand(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding
    ) -> tuple[Expansion, Embedding]:
        reward, discount, state = play(rng_key, action, embedding)
        features = apply_fn.torso(params, jax.vmap(env.observe)(state))
        value = apply_fn.value_head(params, features)
        # All numbers of a search have the type of the values.
        dtype = statistics_dtype(value)
        reward, discount = reward.astype(dtype), discount.astype(dtype)
        return Expansion(reward, discount, mask_value(value, state), features), state

    def policy(params: Params, features: Any, embedding: Embedding) -> chex.Array:
        return mask_logits(env, apply_fn.policy_head(params, features), embedding)

    return SplitRecurrentFn(expand, policy, apply_fn.max_batch)


def make_plan_fn(
    env: Env,
    apply_fn: ApplyFn,
    policy_fn: Callable[..., Output],
    num_simulations: int,
    *,
    model_fns: tuple[RootFn, RecurrentFn] | None = None,
    **knobs: Any,
) -> Callable[..., Output]:
    """Makes a function that searches one position or a batch, as an engine needs it.

    Args:
      env: an environment of `jaxpgs.envs` or of pgx.
      apply_fn: as in `make_root_fn`.
      policy_fn: `jaxpgs.pgs_policy`, `mctx.muzero_policy` or another with their arguments.
      num_simulations: N, at least 1.
      model_fns: `root_fn` and `recurrent_fn` of the search, such as `make_model_fns(model, env)`;
        if None, it uses the rules of the environment and the network.
      **knobs: further arguments of `policy_fn`.

    Returns:
      `plan(params, rng_key, state, **more)`, compiled once per shape; `more` are arrays for
      `policy_fn`, such as `adapted_params`. For a batch of B states it returns the output of
      `policy_fn`. For a single state, as `env.init` and `env.step` return it, it returns the same
      without the axis B: `int(plan(params, rng_key, state).action)` is the move.

    Example:
      >>> plan = jaxpgs.make_plan_fn(env, apply_fn, jaxpgs.mcs_policy, 4)
      >>> state = env.step(env.init(), 4)
      >>> output = plan(params, rng_key, state)  # one position, as an engine has it
      >>> output.action.shape, output.action_weights.shape
      ((), (9,))
    """
    root_fn, recurrent_fn = model_fns or (
        make_root_fn(env, apply_fn),
        make_recurrent_fn(env, apply_fn),
    )

    @jax.jit
    def plan(params: Params, rng_key: chex.PRNGKey, state: Embedding, **more: Any) -> Output:
        # A search needs an axis of roots; a single state gets one of length 1.
        is_single = jnp.ndim(state.terminated) == 0
        if is_single:
            state, more = jax.tree.map(lambda x: jnp.asarray(x)[None], (state, more))
        output = policy_fn(
            params,
            rng_key,
            root_fn(params, rng_key, state),
            recurrent_fn,
            num_simulations,
            # pgx marks every action legal in a finished game.
            ~state.legal_action_mask | state.terminated[:, None],
            **knobs,
            **more,
        )
        # Numbers of the whole batch, such as `num_calls`, have no axis B.
        return jax.tree.map(lambda x: x[0] if x.ndim else x, output) if is_single else output

    return plan


def step_with_keys(env: Env) -> Callable[[Embedding, chex.Array, chex.PRNGKey | None], Embedding]:
    """Makes a batched step that gives each state its own key, if the game's step takes one.

    Args:
      env: the environment.

    Returns:
      `step(state [B], action [B], rng_key) -> state [B]`, with one key or `[B]` keys. The key may
      be None in games without chance; in others `step` then raises `ValueError`.
    """
    if not _takes_key(env):
        return lambda state, action, rng_key: jax.vmap(env.step)(state, action)

    def step(state: Embedding, action: chex.Array, rng_key: chex.PRNGKey | None) -> Embedding:
        if rng_key is not None:
            keys = broadcast_keys(rng_key, len(action))
        elif draws_chance(env):
            raise ValueError(f"{type(env).__name__} has chance: its step needs a key, got None.")
        else:
            keys = None
        return jax.vmap(env.step)(state, action, keys)

    return step


def step_with_key(env: Env) -> Callable[[Embedding, chex.Array, chex.PRNGKey], Embedding]:
    """Returns `step(state, action, key)` for a single state, for games with and without chance."""
    return env.step if _takes_key(env) else lambda state, action, key: env.step(state, action)


def check_players(
    owner: str, env: Env, allowed: tuple[int, ...] = (1, 2), why: str | None = None
) -> int:
    """Returns how many players a game has; raises `ValueError` unless that number is allowed.

    Args:
      owner: the function that was given the game, for the error message.
      env: the environment. If it has no `num_players`, the shape of the rewards is used.
      allowed: (1, 2), (1,) or (2,).
      why: the reason, and what to do instead, for the error message.
    """
    count = getattr(env, "num_players", None)
    if count is None:
        # Shapes only, so that no game is started.
        rewards = jax.eval_shape(env.init, jax.eval_shape(lambda: jax.random.key(0))).rewards
        count = rewards.shape[-1] if rewards.ndim else 1
    if count in allowed:
        return count
    words = " or ".join({1: "one player", 2: "two players"}[number] for number in allowed)
    if why is None:
        why = (
            "A value is one number, which one player gains and the other loses: let the "
            "environment make the moves of further players, and give rewards to one or two."
        )
    raise ValueError(f"{owner} needs a game of {words}; {type(env).__name__} has {count}. {why}")


def reward_and_discount(
    env: Env, before: Embedding, after: Embedding
) -> tuple[chex.Array, chex.Array]:
    """Returns the rewards of the players who moved in `[B]` states, and the discounts.

    A discount is -1 where the other player moves next, and 0 where the game is over.
    """
    mover = before.current_player
    discount = jnp.where(after.current_player == mover, 1.0, -1.0)
    return gain_of(env, mover, before, after), jnp.where(after.terminated, 0.0, discount)


def gain_of(env: Env, player: chex.Array, before: Embedding, after: Embedding) -> chex.Array:
    """Returns a player's reward from a move, which with two players is the loss of the other.

    If only one of two players gets a reward, it counts as a loss of the other.

    Args:
      env: the environment.
      player: `[B]` int32, the player whose reward is returned.
      before: `[B]` states.
      after: `[B]` the states that followed.

    Returns:
      `[B]`. If the arrays are traced, it is NaN where the rewards of two players are not zero-sum,
      or the number of the player who moved is neither 0 nor 1.

    Raises:
      ValueError: if there are more than two players or the rewards have another shape. If the
        arrays are not traced, also where the result would be NaN.
    """
    count = check_players("A search, match or training", env)
    mover, rewards = before.current_player, after.rewards
    if rewards.shape != (*mover.shape, count):
        raise ValueError(
            f"{type(env).__name__} needs rewards of shape [{count}], one for each player; got "
            f"{list(rewards.shape[1:])}."
        )
    # Gains are floats, whatever type the rewards have: they may be negative or NaN.
    if not jnp.issubdtype(rewards.dtype, jnp.inexact):
        rewards = rewards.astype(jnp.float32)
    own = jnp.take_along_axis(rewards, mover[:, None], axis=-1)[:, 0]
    if count == 1:
        return own
    other = jnp.take_along_axis(rewards, 1 - mover[:, None], axis=-1)[:, 0]
    # One of the two is 0, or their sum is 0 except for rounding.
    opposed = (own == 0) | (other == 0) | (jnp.abs(own + other) <= 0.01 * jnp.abs(own))
    # `1 - mover` is the other player only where players are numbered 0 and 1.
    opposed &= (mover == 0) | (mover == 1)
    # Traced numbers cannot be inspected, so wrong rewards become NaN, which searches count.
    if not isinstance(opposed, jax.core.Tracer) and not opposed.all():
        raise ValueError(
            f"{type(env).__name__} needs players 0 and 1 whose rewards sum to 0, or of whom "
            f"only one has a reward; got {rewards[jnp.argmin(opposed)].tolist()} after a move of "
            f"player {int(mover[jnp.argmin(opposed)])}. {OPPOSED}"
        )
    # A reward of the other player alone is a loss of the player who moved.
    gain = jnp.where(own == 0, own - other, own)
    return jnp.where(opposed, jnp.where(player == mover, gain, -gain), jnp.nan)


def chance_key(rng_key: chex.PRNGKey) -> chex.PRNGKey:
    """Returns a key for chance, different from all keys that a program splits off `rng_key`."""
    return jax.random.fold_in(rng_key, _CHANCE)


def draws_chance(env: Env) -> bool:
    """Tells whether the state after an action is random, as in games with dice.

    Args:
      env: an environment with discrete actions.

    Returns:
      Whether the state after an action depends on the key of `env.step`. (In pgx `step` takes a key
      in every game.) This is only traced.
    """
    if not _takes_key(env):
        return False
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(env.init, key)
    action = jax.ShapeDtypeStruct((), jnp.int32)
    # All games of pgx take a key and most ignore it, so the signature is not enough.
    return any(depends(lambda key, *rest: env.step(*rest, key), key, state, action))


def _takes_key(env: Env) -> bool:
    return "key" in inspect.signature(env.step).parameters


class HiddenState(NamedTuple):
    """The state of a learned model.

    Attributes:
      hidden: `[B, ...]` the model's hidden states.
      frame: `[B, ...]` the environment's states at the roots, whose orientation of the board the
        model uses; None if the board has the same orientation for both players.
    """

    hidden: chex.Array
    frame: Embedding | None


def make_model_fns(
    model: nnx.Module, env: Env | None = None, *, part: str = "linear"
) -> tuple[RootFn, SplitRecurrentFn]:
    """Makes `root_fn` and `recurrent_fn` from a learned model (Brosseit 2023, section 4.3).

    Legal actions are known only at the root. Below it the search plans in the model, which knows
    neither legal actions nor the end of a game; rewards are 0 and every discount is -1. PGS is then
    VE-PGS, `mctx.muzero_policy` is MuZero, and `mctx.gumbel_muzero_policy` is Gumbel MuZero.

    Args:
      model: `networks.ValueEquivalentModel`, or another with its methods `represent`, `transition`
        and `predict`, its `policy_head` with `before_linear` and `linear`, and its `value_head`.
      env: the environment of two players who take turns. If None, states are observations, and all
        actions are in their frame; pass the illegal actions to the search as `invalid_actions`.
      part: which part of the policy head a search that keeps a tree may adapt: "linear", for
        `adapt="policy_head.linear"`, where nodes keep the inputs of this layer; or "head" for all
        of it, for `adapt="policy_head"`. `networks.policy_head` takes the same words.

    Returns:
      `root_fn(params, rng_key, state)`, where `params` are those of `networks.functional(model)`,
      and `recurrent_fn`, a `SplitRecurrentFn`.

    Raises:
      ValueError: if the model lacks a part, `part` is unknown or there are not two players.

    Example:
      >>> sizes = {"num_filters": 4, "num_blocks": 1, "rngs": nnx.Rngs(0)}
      >>> shapes = env.observation_shape, env.num_actions
      >>> model = jaxpgs.networks.ValueEquivalentModel(*shapes, **sizes)
      >>> model_params, _ = jaxpgs.networks.functional(model)
      >>> root_fn, recurrent_fn = jaxpgs.make_model_fns(model, env)
      >>> root_fn(model_params, rng_key, states).embedding.hidden.shape
      (2, 3, 3, 4)
    """
    _check_model(model, env, part)
    turned: Any = env  # its players may see the board in different frames
    has_frames = hasattr(env, "policy_logits")
    represent = functional_call(model, lambda model, x: model.represent(x))
    transition = functional_call(model, lambda model, x, action: model.transition(x, action))
    predict = functional_call(model, lambda model, x: model.predict(x))
    value_head = functional_call(model, lambda model, x: model.value_head(x))
    if part == "linear":
        before = functional_call(model, lambda model, x: model.policy_head.before_linear(x))
        # Nodes keep the inputs of the last layer, and only that layer is evaluated again.
        head = functional_call(model, lambda model, x: model.policy_head.linear(x))
    else:
        before = lambda params, x: x  # noqa: E731
        head = functional_call(model, lambda model, x: model.policy_head(x))

    def root_fn(params: Params, rng_key: chex.PRNGKey, state: Embedding) -> mctx.RootFnOutput:
        del rng_key
        hidden = represent(params, state if env is None else jax.vmap(env.observe)(state))
        features = predict(params, hidden)
        # `head` is in the frame of the observation; `mask_logits` turns its logits if necessary.
        logits = head(params, before(params, features))
        value = values_like(value_head(params, features), logits[:, 0])
        if env is not None:
            logits, value = mask_logits(env, logits, state), mask_value(value, state)
        # The whole unroll stays in the root's frame, so each hidden state carries the root's state.
        embedding = HiddenState(hidden, state if has_frames else None)
        return mctx.RootFnOutput(prior_logits=logits, value=value, embedding=embedding)

    def expand(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: HiddenState
    ) -> tuple[Expansion, HiddenState]:
        del rng_key
        if has_frames:
            action = action_in_frame(turned, embedding.frame, action)
        hidden = transition(params, embedding.hidden, action)
        features = predict(params, hidden)
        value = values_like(value_head(params, features), action)
        # Rewards are 0 and discounts -1, since the other player always moves next.
        expansion = Expansion(0 * value, 0 * value - 1, value, before(params, features))
        return expansion, embedding._replace(hidden=hidden)

    def policy(params: Params, features: Any, embedding: HiddenState) -> chex.Array:
        logits = head(params, features)
        return jax.vmap(turned.policy_logits)(embedding.frame, logits) if has_frames else logits

    return root_fn, SplitRecurrentFn(expand, policy)


_MODEL_PARTS = ("represent", "transition", "predict", "policy_head", "value_head")


def _check_model(model: nnx.Module, env: Env | None, part: str) -> None:
    """Raises `ValueError` for arguments that `make_model_fns` cannot use."""
    check_word("make_model_fns", "part", part, PARTS)
    missing = [name for name in _MODEL_PARTS if not hasattr(model, name)]
    if missing:
        raise ValueError(
            f"make_model_fns needs a model with {', '.join(_MODEL_PARTS)}, such as "
            f"networks.ValueEquivalentModel; {type(model).__name__} lacks {', '.join(missing)}."
        )
    if env is not None:
        check_players("make_model_fns", env, (2,), "The discount in such a model is always -1.")


def action_in_frame(env: Env, state: Embedding, action: chex.Array) -> chex.Array:
    """Returns the actions `[B]` in the frame in which a network sees states `[B]`."""
    if not hasattr(env, "network_policy"):
        return action
    # `network_policy` permutes probabilities, so the action is passed as a one-hot policy.
    chosen = jax.nn.one_hot(action, env.num_actions)
    return jnp.argmax(jax.vmap(env.network_policy)(state, chosen), axis=-1).astype(action.dtype)


def mask_logits(env: Env, logits: chex.Array, state: Embedding) -> chex.Array:
    """Converts a network's logits to the environment's actions, and masks illegal actions.

    Args:
      env: the environment. If it has `policy_logits`, this function converts the logits, for
        example if the network sees the board in another frame.
      logits: `[B, A]` the network's logits.
      state: `[B]` states.

    Returns:
      `[B, A]` logits; illegal actions, and all actions of a finished game, have the lowest float.
    """
    if hasattr(env, "policy_logits"):
        logits = jax.vmap(env.policy_logits)(state, logits)
    # pgx marks every action legal in a finished game.
    legal = state.legal_action_mask & ~state.terminated[:, None]
    return jnp.where(legal, logits, jnp.finfo(logits.dtype).min)


def mask_value(value: chex.Array, state: Embedding) -> chex.Array:
    """Returns the values `[B]` or `[B, 1]` of `[B]` states, 0 where the game is over.

    They have at least 32 bits, since rewards get the same type: 16 bits are enough for a network's
    values, but not for scores in the thousands.
    """
    value = values_like(value, state.terminated)
    return jnp.where(state.terminated, 0.0, value.astype(statistics_dtype(value)))
