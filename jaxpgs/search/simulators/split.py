"""A network in two parts: what the cached mode remembers, and the policy that it computes anew."""

import itertools

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.base import (
    Embedding,
    ExpandFn,
    Expansion,
    Params,
    RecurrentFn,
    SplitRecurrentFn,
    as_logits,
    as_values,
)
from jaxpgs.search.simulators import adaptation


def split_in_two(recurrent_fn: RecurrentFn, adapts: bool, dtype: jnp.dtype) -> SplitRecurrentFn:
    """Returns the two parts of `recurrent_fn`, with numbers that a search can count on.

    Where nothing adapts, the whole network is the first part and its logits are the features.

    Args:
      recurrent_fn: the model.
      adapts: whether any of its parameters adapt.
      dtype: the type of the search's statistics.

    Raises:
      ValueError: if parameters adapt and the model is not of two parts.
    """
    if not adapts:

        def evaluate(
            params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding
        ) -> tuple[Expansion, Embedding]:
            output, embedding = recurrent_fn(params, rng_key, action, embedding)
            logits = as_logits(output.prior_logits, dtype)
            return Expansion(output.reward, output.discount, output.value, logits), embedding

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
        reward, discount, value = (as_values(x, dtype) for x in expansion[:3])
        return Expansion(reward, discount, value, expansion.features), embedding

    return SplitRecurrentFn(expand, split_fn.policy, getattr(recurrent_fn, "max_batch", None))


def check_independent(
    expand: ExpandFn, params: Params, mask: list[bool], root: mctx.RootFnOutput
) -> None:
    """Raises `ValueError` if what is to be remembered depends on parameters that adapt."""
    if not any(mask):
        return
    action = trees.zero_rows(root.prior_logits > 0)

    def remembers(mask: list[bool]) -> bool:
        own, frozen = adaptation.split(params, mask)

        def evaluate(
            own: Params, frozen: Params, action: chex.Array, embedding: Embedding
        ) -> tuple[Expansion, Embedding]:
            return expand(adaptation.merge(own, frozen), jax.random.key(0), action, embedding)

        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), own)
        return adaptation.depends(evaluate, one, frozen, action, root.embedding)

    if not remembers(mask):
        return
    names = (
        ".".join(name)
        for i, name in enumerate(trees.leaf_names(params))
        if mask[i] and remembers([k == i for k in range(len(mask))])
    )
    some = list(itertools.islice(names, 5))  # a network has more than one wants to read
    raise ValueError(
        'mode="cached" and reuse remember the evaluation of every state but for the last part of '
        f"its policy; what they remember depends on {some}, which therefore may not adapt. Others "
        'may be like them. Adapt less, such as adapt="policy_head" or "policy_head.linear", or use '
        'mode="constant" and no reuse.'
    )
