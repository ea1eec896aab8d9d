"""Checks of a model for a search: `check_model` plays in it and reports what is wrong."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import mctx
import numpy as np

from jaxpgs.base import Embedding, Params, RecurrentFn
from jaxpgs.checks import check_count
from jaxpgs.search.models.dataflow import depends

_OUTPUTS = ("reward", "discount", "value", "prior_logits")
# Largest allowed prior of illegal actions; with the lowest float as their logit it is 0.
_NO_SHARE = 1e-3


def check_model(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    invalid_actions: chex.Array | None = None,
    *,
    state_of: Callable[[Embedding], Any] | None = None,
    num_steps: int = 64,
    value_range: tuple[float, float] | None = None,
) -> list[str]:
    """Plays random actions in a model, and describes what would mislead a search.

    A search cannot detect a wrong discount, or a reward with the sign of the other player: it
    silently plans for another game. This function checks the shapes and types of the model's
    results, numbers that are not finite, rows that depend on other rows, and values far from all
    returns. If the embedding is the state of an environment, or `state_of` extracts the state, it
    also compares discounts with whose turn it is, rewards with those of the player who moved,
    priors with legal actions, and ends of the game with discounts of 0.

    Args:
      params: the network's parameters.
      rng_key: one key, for the model and for the actions.
      root: the roots, as a search takes them, of two or more different positions.
      recurrent_fn: the model, as a search takes it.
      invalid_actions: `[B, A]`, 1 where the action is illegal at the root.
      state_of: `embedding -> state` with any of `current_player` `[B]`, `legal_action_mask`
        `[B, A]`, `terminated` `[B]` and `rewards` `[B, players]`, as states of `jaxpgs.envs` and of
        pgx have them. The default takes the embedding itself.
      num_steps: how many actions are played in each row, at least 1.
      value_range: the smallest and the greatest possible return; None uses the returns seen in
        games of two players that ended.

    Returns:
      A sentence for each kind of fault, with the first place where it was seen; empty if there are
      none.

    Raises:
      ValueError: if `num_steps` is no whole number above 0.

    Example:
      >>> jaxpgs.check_model(params, rng_key, root, recurrent_fn)
      []
    """
    num_steps = check_count("check_model", "num_steps", num_steps)
    # Shapes first, by tracing alone: a model with wrong shapes cannot be played in.
    action = jnp.zeros(root.value.shape, jnp.int32)
    told = jax.eval_shape(recurrent_fn, params, rng_key, action, root.embedding)
    found = _of_shapes(root, *told)
    if found:
        return found
    model = jax.jit(recurrent_fn)
    illegal = np.zeros(root.prior_logits.shape, bool)
    if invalid_actions is not None:
        illegal = np.asarray(invalid_actions).astype(bool)
    found = _of_rows(model, params, rng_key, root, illegal)
    faults, games = _play(model, params, rng_key, root, illegal, state_of or _itself, num_steps)
    return [*found, *faults, *_of_values(games, value_range)]


def _itself(embedding: Embedding) -> Any:
    return embedding


def _of_shapes(root: mctx.RootFnOutput, output: Any, after: Embedding) -> list[str]:
    """Checks shapes and types."""
    found = []
    for name in _OUTPUTS:
        given, like = getattr(output, name), root.prior_logits if name[0] == "p" else root.value
        if given.shape != like.shape:
            found.append(f"{name} has shape {given.shape}; the root's is {like.shape}.")
        elif given.dtype != like.dtype:
            found.append(
                f"{name} is {given.dtype} and the root's {like.dtype}, so that one of them is cast "
                "wherever they meet: return one type."
            )
    before = jax.tree.map(jnp.asarray, root.embedding)
    shapes = [jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", e) for e in (before, after)]
    structures = [str(jax.tree.structure(e)) for e in (before, after)]
    if structures[0] != structures[1]:
        found.append(
            f"The embedding changes from {structures[0]} to {structures[1]}; a search needs the "
            "same after each action."
        )
    elif shapes[0] != shapes[1]:
        leaves = zip(*map(jax.tree.leaves, shapes), strict=True)
        was, becomes = next((a, b) for a, b in leaves if a != b)
        found.append(
            f"The embedding changes from {was} to {becomes}; a search needs the same after each "
            "action."
        )
    return found


def _of_rows(
    model: Callable[..., Any],
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    illegal: np.ndarray,
) -> list[str]:
    """Checks whether a root's results depend on the other roots of the batch."""
    # The first legal action of each root.
    action = jnp.argmax(jnp.asarray(~illegal), axis=-1).astype(jnp.int32)

    def outputs(key: chex.PRNGKey, step: int) -> list[chex.Array]:
        embedding = jax.tree.map(lambda x: x[::step], root.embedding)
        output, _ = model(params, key, action[::step], embedding)
        return [getattr(output, name)[::step] for name in _OUTPUTS]

    # The rows in reverse order must give the same numbers, reversed, except for rounding. Those of
    # a model that samples with its key differ anyway.
    if any(depends(lambda key: outputs(key, 1), rng_key)):
        return []
    once, turned = ([np.asarray(x, np.float64) for x in outputs(rng_key, step)] for step in (1, -1))
    for name, a, b in zip(_OUTPUTS, once, turned, strict=True):
        if not np.allclose(a, b, rtol=1e-2, atol=1e-3, equal_nan=True):
            return [
                f"{name} of a row depends on the other rows: in another order it is another. Does "
                "batch normalisation still take the mean of the batch?"
            ]
    return []


class _Faults(dict[str, None]):
    """Sentences, one for each kind."""

    def look(self, where: np.ndarray, step: int, kind: str, text: Callable[[int], str]) -> None:
        """Reports the first row with a fault, unless one of this kind was reported before."""
        if where.any() and not any(known.startswith(kind) for known in self):
            row = int(np.argmax(where))
            self[f"{kind} (row {row}, action {step + 1}): {text(row)}"] = None


def _play(
    model: Callable[..., Any],
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    illegal: np.ndarray,
    state_of: Callable[[Embedding], Any],
    num_steps: int,
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Plays random actions; returns the faults, and the results by step and row."""
    rng = np.random.default_rng(int(jax.random.bits(rng_key)))
    faults, embedding = _Faults(), root.embedding
    before = _known(state_of(embedding))
    over = np.array(before.get("terminated", np.zeros(len(illegal), bool)))
    seen: dict[str, list[np.ndarray]] = {n: [] for n in ("over", "turn", *_OUTPUTS[:3])}
    for step in range(num_steps):
        key = jax.random.fold_in(rng_key, step)
        # A uniform legal action, or an illegal one if none is legal, as in a finished game.
        action = np.argmax(rng.random(illegal.shape) - 2.0 * illegal, axis=-1)
        output, embedding = model(params, key, jnp.asarray(action, jnp.int32), embedding)
        after = _known(state_of(embedding))
        reward, discount, value, logits = (
            np.asarray(getattr(output, name), np.float64) for name in _OUTPUTS
        )
        told = np.stack([reward, discount, value])
        # Logits may be -inf, for illegal actions.
        bad = ~over & ~(np.isfinite(told).all(axis=0) & ~np.isnan(logits).any(axis=-1))
        texts = [f"reward, discount, value {numbers}." for numbers in told.T]
        faults.look(bad, step, "Not finite", texts.__getitem__)
        changed = _compare(faults, step, ~over & ~bad, before, after, reward, discount)
        # A model without a known state ends games by discounts of 0.
        ended = np.asarray(after.get("terminated", discount == 0))
        _compare_priors(faults, step, ~over & ~bad & ~ended, after, logits)
        for name, x in zip(seen, (over, changed, reward, discount, value), strict=True):
            seen[name].append(x)
        over, before = over | ended | (discount == 0), after
        if over.all():
            break
        # Without a mask, legality is read from the logits: illegal ones have the lowest float.
        lowest = np.finfo(np.float32).min
        illegal = ~np.asarray(after.get("legal_action_mask", logits > 0.5 * lowest))
    return list(faults), {name: np.stack(x) for name, x in seen.items()}


def _known(state: Any) -> dict[str, np.ndarray]:
    """Returns the fields of a state that describe the game."""
    names = ("current_player", "legal_action_mask", "terminated", "rewards")
    return {name: np.asarray(getattr(state, name)) for name in names if hasattr(state, name)}


def _compare(
    faults: _Faults,
    step: int,
    looked_at: np.ndarray,
    before: dict[str, np.ndarray],
    after: dict[str, np.ndarray],
    reward: np.ndarray,
    discount: np.ndarray,
) -> np.ndarray:
    """Compares rewards and discounts with the game; returns where the player to move changed."""
    large = looked_at & (np.abs(discount) > 1 + 1e-6)
    faults.look(large, step, "Discount", lambda i: f"{discount[i]:g} lies outside of -1 to 1.")
    ended = after.get("terminated", np.zeros(len(reward), bool))
    goes_on = looked_at & ended & (discount != 0)
    faults.look(
        goes_on, step, "A game that is over goes on",
        lambda i: f"the discount is {discount[i]:g}, so values beyond the end count; it must be 0.",
    )  # fmt: skip
    if "current_player" not in before:
        return np.zeros(len(reward), bool)
    mover, following = before["current_player"], after["current_player"]
    changed = mover != following
    alive = looked_at & ~ended
    faults.look(
        alive & changed & (discount > 0), step, "Discount",
        lambda i: (
            f"{discount[i]:g} where player {following[i]} moves after player {mover[i]}. A value "
            "is that of the player to move, so it must be negative."
        ),
    )  # fmt: skip
    faults.look(
        alive & ~changed & (discount < 0), step, "Discount",
        lambda i: f"{discount[i]:g} where player {mover[i]} moves again; it must be positive.",
    )  # fmt: skip
    if after.get("rewards", np.zeros(0)).ndim == 2:
        # Only signs are compared, so that a model may scale its rewards.
        paid = np.take_along_axis(after["rewards"], mover[:, None], axis=1)[:, 0]
        faults.look(
            looked_at & (reward * paid < 0), step, "Reward",
            lambda i: (
                f"{reward[i]:g} where player {mover[i]}, who moved, was paid {paid[i]:g}. A reward "
                "is that of the player who moved."
            ),
        )  # fmt: skip
    return changed


def _compare_priors(
    faults: _Faults, step: int, looked_at: np.ndarray, after: dict[str, Any], logits: np.ndarray
) -> None:
    """Compares the prior with the legal actions."""
    if "legal_action_mask" not in after:
        return
    legal = after["legal_action_mask"]
    top = np.where(np.isfinite(logits), logits, -np.inf).max(axis=-1, keepdims=True)
    # The softmax without its denominator. Differences are clipped: the lowest float means -inf.
    weights = np.exp(np.clip(logits - top, -1e3, 0))
    share = np.where(legal, 0, weights).sum(axis=-1) / weights.sum(axis=-1)
    faults.look(
        looked_at & (share > _NO_SHARE), step, "Illegal actions",
        lambda i: (
            f"they have {100 * share[i]:.0f}% of the prior. Below the root no search knows what is "
            "legal: give their logits the lowest float."
        ),
    )  # fmt: skip
    lost = legal & ((weights == 0) | ~np.isfinite(logits))
    faults.look(
        looked_at & legal.any(axis=-1) & (lost.sum(axis=-1) == legal.sum(axis=-1)), step,
        "Legal actions", lambda i: "none has any of the prior.",
    )  # fmt: skip


def _of_values(games: dict[str, np.ndarray], value_range: tuple[float, float] | None) -> list[str]:
    """Checks whether values are in the range of the returns."""
    alive = ~games["over"]
    values = games["value"][alive & (games["discount"] != 0) & np.isfinite(games["value"])]
    known = "returns are"
    if value_range is None:
        total, returns = np.zeros(games["over"].shape[1]), []
        # G_t = reward_{t+1} + discount_{t+1} G_{t+1}, from the last step back.
        for n in reversed(range(len(games["reward"]))):
            total = np.where(alive[n], games["reward"][n] + games["discount"][n] * total, 0.0)
            returns.append(np.abs(total))
        bound = float(np.max(returns))
        # In games of one player, random play says little about the returns of good play.
        if not games["turn"].any() or bound == 0 or not np.isfinite(bound):
            return []
        value_range, known = (-bound, bound), "random games returned"
    low, high = value_range
    # A value is an estimate and may overshoot somewhat.
    slack = 0.25 * (high - low)
    outside = values[(values < low - slack) | (values > high + slack)]
    if not outside.size:
        return []
    most = float(outside[np.argmax(np.abs(outside))])
    return [f"Values reach {most:.3g}, but {known} {low:g} to {high:g}."]
