"""A network in two parts: what the cached mode remembers, and the policy that it computes anew."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs.base import (
    Embedding,
    Expansion,
    Params,
    RecurrentFn,
    SplitRecurrentFn,
    broadcast_keys,
    finite_or_zero,
)
from jaxpgs.search import adaptation


def split_in_two(
    params: Params, mask: list[bool], root: mctx.RootFnOutput, recurrent_fn: RecurrentFn
) -> SplitRecurrentFn:
    """Returns the two parts of `recurrent_fn`, with what is not finite replaced by 0.

    Where nothing adapts, the whole network is the first part and its logits are the features.
    """
    if not any(mask):

        def evaluate(
            params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding
        ) -> tuple[Expansion, Embedding]:
            output, embedding = recurrent_fn(params, rng_key, action, embedding)
            parts = output.reward, output.discount, output.value, output.prior_logits
            return Expansion(*parts), embedding

        split_fn = SplitRecurrentFn(evaluate, lambda params, logits, embedding: logits)
    elif isinstance(recurrent_fn, SplitRecurrentFn):
        split_fn = recurrent_fn
    else:
        raise ValueError(
            'mode="cached" remembers what does not adapt and must know the parts of the network: '
            "make_recurrent_fn with an apply_fn from networks.functional of a module with torso, "
            "policy_head and value_head, or from networks.SplitApplyFn; or a SplitRecurrentFn of "
            f"your own. Got {recurrent_fn!r}."
        )

    def expand(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding
    ) -> tuple[Expansion, Embedding]:
        expansion, embedding = split_fn.expand(params, rng_key, action, embedding)
        dtype = root.value.dtype
        reward, discount, value = (finite_or_zero(x.astype(dtype)) for x in expansion[:3])
        return Expansion(reward, discount, value, expansion.features), embedding

    _check_independent(expand, params, mask, root)
    max_batch = getattr(recurrent_fn, "max_batch", None)
    return SplitRecurrentFn(expand, split_fn.policy, max_batch)


def _check_independent(
    expand: Callable, params: Params, mask: list[bool], root: mctx.RootFnOutput
) -> None:
    """Raises `ValueError` if what is to be remembered depends on parameters that adapt."""
    own, frozen = adaptation.split(params, mask)
    action = jax.ShapeDtypeStruct(root.value.shape, jnp.int32)

    def evaluate(
        own: Params, frozen: Params, action: chex.Array, embedding: Embedding
    ) -> tuple[Expansion, Embedding]:
        keys = broadcast_keys(jax.random.key(0), len(action))
        return expand(adaptation.merge(own, frozen), keys, action, embedding)

    # An output that depends on a mapped input cannot leave the map unmapped.
    mapped = jax.vmap(evaluate, (0, None, None, None), None, axis_size=1)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), own)
    try:
        jax.eval_shape(mapped, one, frozen, action, root.embedding)
    except ValueError as error:
        if "out_axes" not in str(error):
            raise
        raise ValueError(
            'mode="cached" remembers the evaluation of every node but for the policy, so only the '
            "policy head may adapt, and not the torso or the value head; adapt fewer parameters, "
            'such as networks.policy_head(params), or use mode="constant".'
        ) from error
