"""Additional policies of a network: its logits plus separately trained offsets."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from jaxpgs.base import Params
from jaxpgs.networks.functional import (
    SplitApplyFn,
    constructor_kwargs,
    functional,
    functional_call,
)


class WithOffsets(nnx.Module):
    """A network with additional policies: its logits plus offsets (Soemers et al. 2019, IV-B).

    Each offset is a policy head like the network's, on the same features, whose last layer is
    initialised to zero. So every additional policy initially equals the network's own, and follows
    it while it learns. Gradients of an offset do not reach the network.

    Deviation: the paper's policies are linear; here a head of several layers is copied completely.

    Args:
      network: a network with `torso`, `policy_head` and `value_head`, such as those of this
        library. Its modules are used, not copied. A search and `networks.functional` use the
        policy and value of `network`, without offsets.
      names: names of the offsets.

    Raises:
      ValueError: if the network has other parts, or a name is no identifier or occurs twice.

    Example:
      >>> network = jaxpgs.networks.WithOffsets(module, ["tspg"])
      >>> params, apply_fn = jaxpgs.networks.functional(network)  # the policy without offsets
    """

    is_torso_and_heads = True  # see `networks.functional`

    def __init__(self, network: Any, names: Sequence[str]) -> None:
        if not getattr(network, "is_torso_and_heads", False):
            raise ValueError(
                "WithOffsets needs a network with torso, policy_head and value_head, and with "
                f"is_torso_and_heads = True; got {type(network).__name__}."
            )
        if not all(name.isidentifier() for name in names) or len(set(names)) < len(names):
            raise ValueError(f"Offsets need different names that are identifiers, got {names}.")
        self.torso = network.torso
        self.policy_head = network.policy_head
        self.value_head = network.value_head
        # `save_pretrained` stores these to rebuild the network.
        self.network_class = type(network).__name__
        self.network_type = type(network)
        self.network_kwargs = tuple(constructor_kwargs(network).items())
        self.offsets = nnx.Dict(**{name: _zero_head(network.policy_head) for name in names})

    def __call__(self, observation: chex.Array) -> tuple[chex.Array, chex.Array]:
        """Returns the network's own logits `[B, A]` and values `[B]`."""
        features = self.torso(observation)
        return self.policy_head(features), self.value_head(features)

    def all_policies(
        self, observation: chex.Array
    ) -> tuple[tuple[chex.Array, chex.Array], dict[str, chex.Array]]:
        """Returns logits and values as a call does, and the logits `[B, A]` of all offsets."""
        features = self.torso(observation)
        logits = self.policy_head(features)
        # Soemers et al. 2019, IV-B: z = (stop_gradient(w) + theta) . phi, so each loss moves only
        # its own policy.
        held, base = jax.lax.stop_gradient((features, logits))
        further = {name: base + head(held) for name, head in self.offsets.items()}
        return (logits, self.value_head(features)), further


def offset_policy(module: WithOffsets, name: str) -> SplitApplyFn:
    """Makes the pure function of one of the additional policies, for search and play.

    Args:
      module: the network; its parameters are those of `networks.functional(module)`.
      name: the name of the offset.

    Returns:
      `apply_fn(params, observation) -> (logits, value)` like that of `networks.functional`. A
      search may adapt the network's own head in it.

    Raises:
      ValueError: if there is no such offset.

    Example:
      >>> network = jaxpgs.networks.WithOffsets(module, ["tspg"])
      >>> params, _ = jaxpgs.networks.functional(network)
      >>> tspg_fn = jaxpgs.networks.offset_policy(network, "tspg")
      >>> recurrent_fn = jaxpgs.make_recurrent_fn(env, tspg_fn)
    """
    if name not in module.offsets:
        raise ValueError(f"The offsets are {sorted(module.offsets)}, got {name!r}.")
    _, base = functional(module)
    assert isinstance(base, SplitApplyFn)
    offset = functional_call(module, lambda network, x: network.offsets[name](x))

    def policy_head(params: Params, features: Any) -> chex.Array:
        return base.policy_head(params, features) + offset(params, features)

    return dataclasses.replace(base, policy_head=policy_head)


def _zero_head(head: Any) -> Any:
    """Copies a policy head, and sets its last layer to zero."""
    # Only the last layer: if all layers were zero, only its bias would ever learn.
    copy = nnx.clone(head)
    state = nnx.state(copy.linear)
    nnx.update(copy.linear, jax.tree.map(jnp.zeros_like, state))
    return copy
