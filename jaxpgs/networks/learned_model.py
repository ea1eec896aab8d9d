"""A learned model that predicts values and policies, but not the board."""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from jaxpgs.networks.layers.heads import PolicyHead, ValueHead
from jaxpgs.networks.layers.sizes import check_board, check_sizes
from jaxpgs.networks.layers.squeeze_excitation import SETower


class ValueEquivalentModel(nnx.Module):
    """MuZero's model without rewards (Brosseit 2023, sections 4.3 and 5.3).

    Three residual networks with squeeze-and-excitation: `represent` maps an observation to a hidden
    state, `transition` maps a hidden state and an action to the next hidden state, and `predict`
    maps a hidden state to the features that `policy_head` and `value_head` read. Hidden states are
    planes of the board's size; an action is one more plane, with a 1 at its cell. There are no
    heads for rewards and legality; values are from the view of the player to move.
    `jaxpgs.make_model_fns` makes `root_fn` and `recurrent_fn` from the model.

    A whole unroll stays in the frame of its first observation: if an environment turns the board
    for the player to move, as Hex does, actions and policies of later steps are turned like those
    of the first. So the transition does not have to learn to turn the board.

    The model is also a policy and value network of observations, with `torso`. Weights, batch
    statistics and both heads are float32 whatever `dtype` is. Keyword arguments are kept as
    attributes of the same names, so that the network can be rebuilt from saved weights.

    Args:
      observation_shape: `(height, width, planes)`, without the batch axis.
      num_actions: A, which must be the number of cells.
      num_filters: number of planes of a hidden state.
      num_blocks: residual blocks of each of the three networks, 0 or more.
      policy_filters: planes of the policy head's convolution.
      value_filters: planes of the value head's convolution.
      squeeze_ratio: as in `SEResNet`.
      norm: "batch" for batch normalisation: in training each step of an unroll is normalised with
        its own batch statistics, in a search with their running means. "layer" normalises each
        hidden state by itself, so that the model is the same in training and in a search.
      dtype: type of hidden states and of their computation, such as "float32" or "bfloat16".
      rngs: random keys for the initial weights.

    Raises:
      ValueError: if the observation does not have three axes, the number of actions is not that of
        the cells, or a size is not positive.

    Example:
      >>> sizes = dict(num_filters=4, num_blocks=1, rngs=nnx.Rngs(0))
      >>> shapes = env.observation_shape, env.num_actions
      >>> model = jaxpgs.networks.ValueEquivalentModel(*shapes, **sizes)
      >>> hidden = model.represent(jax.vmap(env.observe)(states))
      >>> model.transition(hidden, jnp.array([0, 4])).shape
      (2, 3, 3, 4)
    """

    is_torso_and_heads = True  # see `networks.functional`

    def __init__(
        self,
        observation_shape: Sequence[int],
        num_actions: int,
        *,
        num_filters: int = 128,
        num_blocks: int = 4,
        policy_filters: int = 32,
        value_filters: int = 32,
        squeeze_ratio: int = 16,
        norm: str = "batch",
        dtype: jax.typing.DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        check_sizes(
            "ValueEquivalentModel",
            num_filters=num_filters,
            policy_filters=policy_filters,
            value_filters=value_filters,
            squeeze_ratio=squeeze_ratio,
        )
        self.observation_shape = check_board("ValueEquivalentModel", observation_shape)
        height, width, _ = self.observation_shape
        if num_actions != height * width:
            raise ValueError(
                f"ValueEquivalentModel shows an action as a cell of the board, here {height} x "
                f"{width}, so num_actions must be {height * width}; got {num_actions}."
            )
        self.num_filters, self.num_blocks, self.squeeze_ratio = (
            num_filters, num_blocks, squeeze_ratio,
        )  # fmt: skip
        self.policy_filters, self.value_filters = policy_filters, value_filters
        self.norm, self.dtype = norm, jnp.dtype(dtype).name
        sizes = (num_filters, num_blocks, squeeze_ratio)
        self.representation = SETower(
            *sizes, observation_shape=self.observation_shape, norm=norm, dtype=dtype, rngs=rngs
        )
        self.dynamics = SETower(
            *sizes,
            observation_shape=(height, width, num_filters + 1),
            kernel=1,
            norm=norm,
            dtype=dtype,
            rngs=rngs,
        )
        self.prediction = SETower(*sizes, norm=norm, dtype=dtype, rngs=rngs)
        self.policy_head = PolicyHead(
            num_filters, num_actions, num_planes=policy_filters, num_cells=num_actions, norm=norm,
            rngs=rngs,
        )  # fmt: skip
        self.value_head = ValueHead(
            num_filters, num_planes=value_filters, num_cells=num_actions, norm=norm, rngs=rngs
        )

    def __call__(self, observation: chex.Array) -> tuple[chex.Array, chex.Array]:
        """Evaluates a batch of observations, without any transition.

        Args:
          observation: `[B, height, width, planes]`, of any real type.

        Returns:
          Logits `[B, A]` and values `[B]` in [-1, 1], both float32.

        Raises:
          ValueError: if the observation has another shape.
        """
        features = self.torso(observation)
        return self.policy_head(features), self.value_head(features)

    def torso(self, observation: chex.Array) -> chex.Array:
        """Returns features of observations, as `represent` and `predict` make them."""
        return self.predict(self.represent(observation))

    def represent(self, observation: chex.Array) -> chex.Array:
        """Returns hidden states `[B, height, width, num_filters]` of observations: `h`."""
        return self.representation(observation)

    def transition(self, hidden: chex.Array, action: chex.Array) -> chex.Array:
        """Returns the hidden states after actions `[B]`, in the frame of the observation: `g`."""
        height, width, _ = self.observation_shape
        plane = jax.nn.one_hot(action, height * width, dtype=hidden.dtype)
        plane = plane.reshape(-1, height, width, 1)
        return self.dynamics(jnp.concatenate([hidden, plane], axis=-1))

    def predict(self, hidden: chex.Array) -> chex.Array:
        """Returns the features of hidden states that both heads read: `f` without its heads."""
        return self.prediction(hidden)

    def unroll(
        self, observation: chex.Array, action: chex.Array, gradient_scale: float = 0.5
    ) -> tuple[chex.Array, chex.Array]:
        """Evaluates observations, and the hidden states after each of K actions.

        Args:
          observation: `[B, height, width, planes]`.
          action: `[B, K]` int32, in the frame of the observation.
          gradient_scale: the factor by which gradients are multiplied before each earlier
            transition.

        Returns:
          Logits `[B, K + 1, A]` and values `[B, K + 1]`, the first of the observation itself.
        """
        hidden = [self.represent(observation)]
        for k in range(action.shape[1]):
            # As in MuZero, gradients are halved at each transition, so that the total gradient of
            # the transition does not grow with the length of the unroll.
            before = scale_gradient(hidden[-1], gradient_scale)
            hidden.append(self.transition(before, action[:, k]))
        # All in one batch, so that batch normalisation sees hidden states of every depth at once.
        features = self.predict(jnp.concatenate(hidden))

        # [(K + 1) * B, ...], step by step, to [B, K + 1, ...].
        def by_step(x: chex.Array) -> chex.Array:
            return jnp.moveaxis(x.reshape(len(hidden), len(observation), *x.shape[1:]), 0, 1)

        return by_step(self.policy_head(features)), by_step(self.value_head(features))


def scale_gradient(x: chex.Array, scale: float) -> chex.Array:
    """Returns `x`, with gradients multiplied by `scale`."""
    # The second term is 0 but has a gradient.
    return x + (scale - 1) * (x - jax.lax.stop_gradient(x))
