"""Policy and value networks, and their conversion to parameters and pure functions."""

from jaxpgs.networks.fully_connected import FullyConnectedResNet
from jaxpgs.networks.functional import (
    SplitApplyFn,
    functional,
    functional_call,
    functional_train,
    module_from_params,
    policy_head,
    trainable_mask,
    with_temperature,
)
from jaxpgs.networks.layers.geometry import BoardGeometry, board_geometry, with_last_move
from jaxpgs.networks.layers.squeeze_excitation import SEResNet
from jaxpgs.networks.learned_model import ValueEquivalentModel
from jaxpgs.networks.offsets import WithOffsets, offset_policy
from jaxpgs.networks.pattern_templates import Pattern, Template, default_templates
from jaxpgs.networks.patterns import PatternPolicy, pattern_policy
from jaxpgs.networks.resize import resize
from jaxpgs.networks.resnet import AlphaZeroResNet
from jaxpgs.networks.samegame_resnet import SameGameResNet

__all__ = [
    "AlphaZeroResNet",
    "BoardGeometry",
    "FullyConnectedResNet",
    "Pattern",
    "PatternPolicy",
    "SEResNet",
    "SameGameResNet",
    "SplitApplyFn",
    "Template",
    "ValueEquivalentModel",
    "WithOffsets",
    "board_geometry",
    "default_templates",
    "functional",
    "functional_call",
    "functional_train",
    "module_from_params",
    "offset_policy",
    "pattern_policy",
    "policy_head",
    "resize",
    "trainable_mask",
    "with_last_move",
    "with_temperature",
]
