"""Former names of modules, so that runs of earlier versions can be resumed."""

import json
import re
from typing import Any

# Modules and functions of `jaxpgs` by their former names.
MODULES = {
    "adapters": "adapters.environments",
    "chance": "adapters.chance",
    "continuous": "adapters.continuous",
    "envs.columns": "envs.bitboard",
    "envs.render_samegame": "envs.samegame.svg",
    "envs.samegame": "envs.samegame.game",
    "envs.samegame_playouts": "puzzles.samegame_playouts",
    "envs.samegame_rules": "envs.samegame.rules",
    "envs.samegame_sequences": "envs.samegame.sequences",
    "evaluation.gtp_players": "evaluation.players.gtp_players",
    "evaluation.opponents": "evaluation.players.opponents",
    "evaluation.players": "evaluation.players.player",
    "evaluation.searchers": "evaluation.players.searchers",
    "evaluation.spending": "evaluation.equal_budget",
    "model_checks": "adapters.model_checks",
    "networks.checks": "networks.layers.sizes",
    "networks.convolution": "networks.layers.convolution",
    "networks.geometry": "networks.layers.geometry",
    "networks.heads": "networks.layers.heads",
    "networks.squeeze_excitation": "networks.layers.squeeze_excitation",
    "networks.value_equivalent": "networks.learned_model",
    "puzzles.judging": "puzzles.offline_games",
    "puzzles.presets": "puzzles.searches",
    "puzzles.raw_games": "puzzles.policy_rollouts",
    "search.cut": "search.models.cut",
    "search.memory": "search.stores.memory",
    "search.model": "search.models.model",
    "search.nodes": "search.stores.nodes",
    "search.learn": "search.learning.learn",
    "search.replay": "search.learning.ring_buffer",
    "search.ring_buffer": "search.learning.ring_buffer",
    "search.store_rollouts": "search.stores.store_rollouts",
    "search.store_tree": "search.stores.store_tree",
    "search.tree_view": "search.stores.tree_view",
    "training.arguments": "training.runtime.arguments",
    "training.board_searches": "training.puzzles.puzzle_data",
    "training.checkpoint": "training.runtime.checkpoint",
    "training.distillation": "training.recipes.distillation",
    "training.example_queue": "training.puzzles.example_queue",
    "training.expert_iteration": "training.two_player.expert_iteration",
    "training.experts": "training.two_player.experts",
    "training.fitting": "training.puzzles.fitting",
    "training.head_to_head": "training.two_player.head_to_head",
    "training.labelling": "training.models.labelling",
    "training.learner_games": "training.policy_gradient.learner_games",
    "training.loggers": "training.runtime.loggers",
    "training.loop": "training.runtime.iterations",
    "training.losses": "training.two_player.losses",
    "training.model_fitting": "training.models.model_fitting",
    "training.objectives": "training.two_player.objectives",
    "training.opponents": "training.policy_gradient.past_selves",
    "training.ppo": "training.policy_gradient.ppo",
    "training.puzzle_iteration": "training.puzzles.puzzle_iteration",
    "training.replay": "training.two_player.replay",
    "training.resignation": "training.two_player.resignation",
    "training.run_folder": "training.runtime.run_folder",
    "training.selfplay": "training.two_player.selfplay",
    "training.sharing": "training.runtime.sharding",
    "training.unrolls": "training.models.unrolls",
    "training.value_equivalent": "training.models.value_equivalent",
}
FUNCTIONS = {
    **{
        f"search.presets.{search}_{kind}": f"search.presets.{module}.{search}_{kind}"
        for module, searches in (
            ("pgs", ("mcs", "pgs", "batched_mcts")), ("gumbel", ("gumbel_pgs", "gumbel_mcts")),
        )
        for search in searches
        for kind in ("policy", "search")
    },
    "training.two_player.experts.raw_network": "training.two_player.experts.raw_policy",
}  # fmt: skip


def renamed(known: Any) -> Any:
    """Converts an earlier version's description of a run to the current names.

    Args:
      known: the contents of `run.json`.

    Returns:
      The same with the current names of modules and functions. Current names are unchanged.
    """
    text = json.dumps(known)
    for names, after in ((MODULES, r"(?=\.)"), (FUNCTIONS, r"\b")):
        # The longest first, as a regular expression takes the first alternative that matches.
        # Current names are included, since one may begin with a former one:
        # "adapters.environments".
        either = sorted({*names, *names.values()}, key=len, reverse=True)
        pattern = rf"\bjaxpgs\.({'|'.join(map(re.escape, either))}){after}"
        pieces = re.split(pattern, text)
        # `re.split` with a group puts the matches at odd places, and the text between at even ones.
        pieces[1::2] = [f"jaxpgs.{names.get(name, name)}" for name in pieces[1::2]]
        text = "".join(pieces)
    return json.loads(text)
