"""Mistakes in the searches and move codes of SameGame, and in matches."""

from quality.mutants import Mutation

_JUDGING = "../puzzles/offline_games.py"
_RAW = "../puzzles/policy_rollouts.py"
_COLUMNS = "../envs/bitboard.py"
_MATCHES = "../evaluation/matches.py"
_RECORDS = "../evaluation/records.py"
_SEQUENCES = "../envs/samegame/sequences.py"
_ORDERS = "../envs/samegame/orders.py"
_TEMPERING = "../puzzles/parallel_tempering.py"

MUTATIONS = (
    # Judged positions.
    Mutation(
        "judging: the judge always has the last word", _JUDGING,
        "better = rest >= values", "better = rest > 1e9", "judged_by", "test_samegame_search.py",
    ),
    Mutation(
        "judging: the whole game's score in place of the rest's", _JUDGING,
        "rest = solution.played[None] - searches.score",
        "rest = solution.played[None] + 0 * searches.score", "judged_by", "test_samegame_search.py",
    ),
    Mutation(
        "judging: the judge's move beside the value that was played", _JUDGING,
        "jnp.where(searches.searched & ~better, actions, searches.action)",
        "jnp.where(searches.searched, actions, searches.action)", "judged_by",
        "test_samegame_search.py",
    ),
    Mutation(
        "judging: the last positions are left out", _JUDGING,
        "lambda c: c[0] * shape[1] < count", "lambda c: (c[0] + 1) * shape[1] < count", "judged_by",
        "test_samegame_search.py",
    ),
    # Games without a search.
    Mutation(
        "raw games: nothing is drawn", _RAW, "jax.vmap(jax.random.categorical)(own, logits)",
        "jnp.argmax(logits, axis=-1)",
        "random_games_are_random", "test_samegame_search.py",
    ),
    Mutation(
        "raw games: a greedy policy draws", _RAW, "if greedy:", "if not greedy:",
        "policy_alone", "test_samegame_search.py",
    ),
    # Codes of pairs.
    Mutation(
        "pairs: the upper block may go on", _COLUMNS,
        "end_above = ~(up | left | right) >> 1", "end_above = ~(left | right) >> 1",
        "games_are_those", "test_nrpa.py",
    ),
    Mutation(
        "pairs: the right block may go down", _COLUMNS,
        "shift(~(up | right | down), -1)", "shift(~(up | right), -1)", "games_are_those",
        "test_nrpa.py",
    ),
    Mutation(
        "pairs: they have codes of both kinds", _SEQUENCES,
        "words & ~pairs", "words", "games_are_those", "test_nrpa.py",
    ),
    Mutation(
        "pairs: features of the other kind", _SEQUENCES,
        "// env.width % 2 == 0", "// env.width % 2 == 1", "codes_have_the_colors", "test_nrpa.py",
    ),
    Mutation(
        "pairs: values by code, not by block", _SEQUENCES,
        "jnp.repeat(rows, 2, axis=1)", "jnp.repeat(rows, 2, axis=2)", "codes_have_the_colors",
        "test_nrpa.py",
    ),
    Mutation(
        "pairs: by default on small boards, too", "../puzzles/nrpa_samegame.py",
        "env.num_actions > 100", "env.num_actions > 99", "pairs_have_logits", "test_nrpa.py",
    ),
    # Games in a given order, and parallel tempering.
    Mutation(
        "orders: of equal times any block", _ORDERS,
        "reversed(range(len(words)))", "range(len(words))", "of_the_order",
        "test_parallel_tempering.py",
    ),
    Mutation(
        "orders: blocks that fell are marked where they fell to", _ORDERS,
        "taken.at[step].set(alive ^ left)", "taken.at[step].set(group)", "of_the_order",
        "test_parallel_tempering.py",
    ),
    Mutation(
        "tempering: games that are worse are not taken", _TEMPERING,
        ">= temperature * jnp.log(numbers[9])", ">= 0", "metropolis", "test_parallel_tempering.py",
    ),
    Mutation(
        "tempering: better games go to hotter lanes", _TEMPERING,
        "(inverse - inverse[mate])", "(inverse[mate] - inverse)", "colder_lanes",
        "test_parallel_tempering.py",
    ),
    Mutation(
        "tempering: a pair draws two numbers", _TEMPERING,
        "[:, jnp.minimum(lane, mate)]", "", "colder_lanes", "test_parallel_tempering.py",
    ),
    Mutation(
        "tempering: the best is the last", _TEMPERING,
        "best = new.score > state.best", "best = taken", "best_is_kept",
        "test_parallel_tempering.py",
    ),
    # Matches that were stopped.
    Mutation(
        "matches: batches are played again", _MATCHES,
        "list(enumerate(plan))[len(batches) :]", "list(enumerate(plan))", "goes_on_where",
        "test_matches.py",
    ),
    Mutation(
        "matches: the second player's spending is the last batch's", _RECORDS,
        "functools.reduce(operator.add, second)", "second[-1]", "goes_on_where",
        "test_matches.py",
    ),
)  # fmt: skip
