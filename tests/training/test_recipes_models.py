"""Recipes of learned models: labels kept in files, the command, and the models it made."""

import dataclasses
import functools
import hashlib
import json

import chex
import games
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
from flax import nnx

import jaxpgs
from jaxpgs import networks
from jaxpgs.envs import Hex
from jaxpgs.training.models import labelling
from jaxpgs.training.recipes import learned_models
from jaxpgs.training.runtime import loggers
from jaxpgs.training.runtime.settings import by_name

ENV = Hex(3)
SHIPPED = [name for name in jaxpgs.available_pretrained() if name in learned_models.RECIPES]
TINY = learned_models.ModelRecipe(
    ENV,
    {"num_filters": 2, "num_blocks": 0, "policy_filters": 2, "value_filters": 2},
    "judge", 4, 20, 3, {"games_at_once": 8, "num_steps": 8},
    {"unroll": 1, "batch_size": 8, "steps_per_epoch": 2, "validation_batches": 1, "patience": 3},
)  # fmt: skip


@functools.cache
def judge_network():
    return networks.FullyConnectedResNet((3, 3, 3), 9, width=8, num_blocks=0, rngs=nnx.Rngs(0))


def label(**knobs):
    params, apply_fn = networks.functional(judge_network())
    knobs = {"num_games": 20, "games_at_once": 8, "num_steps": 8} | knobs
    return by_name(labelling.label_games)(ENV, apply_fn, params, **knobs)


@pytest.mark.slow
def test_labelling_goes_on_bit_equal_after_a_kill(tmp_path):
    counts = []
    whole = label(directory=tmp_path, callback=lambda _, m: counts.append(m["finished_games"]))
    parts = sorted(path.name for path in tmp_path.glob("part-*.npz"))
    assert len(parts) == len(counts) == len(whole.value) // 8 > 2 and counts[-1] >= 20
    (tmp_path / parts[-1]).unlink()
    (tmp_path / parts[-2]).unlink()
    again = []
    goes_on = label(directory=tmp_path, callback=lambda _, m: again.append(m["finished_games"]))
    chex.assert_trees_all_equal(goes_on, whole)
    assert again == counts
    # Nothing is played where the files have it all, and a true answer ends it early.
    stopped = label(directory=tmp_path, callback=lambda _, m: m["iteration"] == 2)
    chex.assert_trees_all_equal(stopped, jax.tree.map(lambda x: x[:16], whole))
    with pytest.raises(ValueError, match="holds a run with seed 0, not 1"):
        label(directory=tmp_path, seed=1)
    _, apply_fn = networks.functional(judge_network())
    others = jax.tree.map(lambda x: x + 1, networks.functional(judge_network())[0])
    with pytest.raises(ValueError, match="holds a run with weights_sha256"):
        by_name(labelling.label_games)(
            ENV, apply_fn, others, num_games=20, games_at_once=8, num_steps=8, directory=tmp_path
        )
    (tmp_path / parts[0]).write_bytes(b"cut short")
    with pytest.raises(ValueError, match=r"part-0000\.npz is damaged.*label their games again"):
        label(directory=tmp_path)


def test_a_judge_may_drop_units():
    """Its parameters hold random keys, which are hashed too."""
    params = {"kernel": np.ones(2, np.float32), "rng": jax.random.key(0)}
    assert labelling._hash(params) == labelling._hash(params | {})
    assert labelling._hash(params) != labelling._hash(params | {"rng": jax.random.key(1)})
    # A folder of a judge without keys is recognised as before.
    plain = hashlib.sha256(params.pop("kernel").tobytes()).hexdigest()
    assert labelling._hash({"kernel": np.ones(2, np.float32)}) == plain


def test_parts_keep_types_that_numpy_does_not_know(tmp_path):
    files = labelling.Parts(tmp_path)
    found = {"value": np.arange(3).astype(jnp.bfloat16), "policy": np.ones((2, 2), np.float32)}
    files.write(0, found)
    chex.assert_trees_all_equal(files.read(0, found), found, strict=True)
    for other in (found | {"value": np.ones(3, np.float32)}, found | {"more": np.ones(1)}):
        with pytest.raises(ValueError, match="holds games of another kind"):
            files.read(0, other)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ChanceState:
    key: jax.Array
    position: jax.Array
    terminated: jax.Array
    rewards: jax.Array
    current_player: jax.Array
    legal_action_mask: jax.Array


class Chance:
    """A game of two moves for one player whose states hold a random key."""

    num_players, num_actions, observation_shape = 1, 2, (1,)

    def init(self, key):
        over, legal = jnp.bool_(False), jnp.ones(2, bool)
        return ChanceState(key, jnp.int32(0), over, jnp.zeros(1), jnp.int32(0), legal)

    def step(self, state, action):
        position = state.position + 1
        key = jax.random.fold_in(state.key, position)
        return dataclasses.replace(state, key=key, position=position, terminated=position >= 2)

    def observe(self, state):
        return state.position[None].astype(jnp.float32)


def test_states_may_hold_random_keys(tmp_path):
    def apply_fn(params, observation):
        return jnp.zeros((len(observation), 2)), jnp.zeros(len(observation))

    def labelled(directory):
        return by_name(labelling.label_games)(
            Chance(), apply_fn, {}, num_games=3, games_at_once=2, num_steps=2, directory=directory
        )

    once = labelled(tmp_path)
    keys = once.played.state.key
    assert keys.shape == (4, 2) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    assert len(np.unique(jax.random.key_data(keys).reshape(8, -1), axis=0)) == 8
    # The second file follows from the games of the first.
    (tmp_path / "part-0001.npz").unlink()
    again = labelled(tmp_path)
    np.testing.assert_array_equal(
        jax.random.key_data(again.played.state.key), jax.random.key_data(keys)
    )
    np.testing.assert_array_equal(again.value, once.value)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setattr(learned_models, "RECIPES", {"tiny": TINY})
    params, _ = networks.functional(judge_network())
    jaxpgs.save_pretrained(tmp_path, "judge", env=ENV, module=judge_network(), params=params)
    return tmp_path


@pytest.mark.slow
@pytest.mark.lenient
def test_the_command_makes_a_model_and_finds_what_is_done(tiny, capsys):
    command = ["tiny", "--out", str(tiny)]
    learned_models.main(command)
    made = jaxpgs.load_pretrained("tiny", directory=tiny)
    card, log = made.card, loggers.read_log(tiny / "tiny" / "metrics.jsonl")
    assert card["command"] == "python -m jaxpgs.training.recipes tiny --seed 0"
    assert card["training"]["games_done"] >= 20 and card["training"]["epochs_done"] == 3
    assert [len(card["held_out"][name]) for name in ("policy_loss", "value_loss")] == [2, 2]
    best = min(log, key=lambda row: row["validation_policy_loss"] + row["validation_value_loss"])
    assert card["held_out"]["epoch"] == best["iteration"]
    assert {"versions", "date", "wall_time_s", "hardware", "strength"} <= set(card)
    # Another call finds everything done, and `--minutes` stops it before it writes a model.
    (tiny / "tiny.safetensors").unlink()
    learned_models.main([*command, "--minutes", "0"])
    assert "call again to go on" in capsys.readouterr().out
    assert not (tiny / "tiny.safetensors").exists()
    learned_models.main(command)
    again = jaxpgs.load_pretrained("tiny", directory=tiny)
    chex.assert_trees_all_equal(again.params, made.params)
    assert loggers.read_log(tiny / "tiny" / "metrics.jsonl") == log


def test_a_judge_of_another_game_is_refused(tiny, monkeypatch):
    recipe = TINY._replace(env=Hex(4))
    monkeypatch.setattr(learned_models, "RECIPES", {"tiny": recipe})
    message = r"^python -m jaxpgs.training.recipes: The judge of tiny .*size=4.*; judge is .*size=3"
    with pytest.raises(SystemExit, match=message):
        learned_models.main(["tiny", "--out", str(tiny)])


@pytest.mark.parametrize("name", SHIPPED)
def test_recipes_of_models_are_what_was_done(name):
    card, recipe = jaxpgs.load_pretrained(name).card, learned_models.RECIPES[name]
    assert recipe.network.items() <= card["architecture"]["kwargs"].items()
    done = card["training"]
    assert (done["judge"], done["simulations"]) == (recipe.judge, recipe.num_simulations)
    assert done["games_done"] >= done["games"] == recipe.num_games
    assert done["epochs"] == recipe.num_epochs and done["step_size"] == recipe.step_size
    assert json.loads(json.dumps({**recipe.games, **recipe.fitting})).items() <= done.items()


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_searches_plan_in_a_shipped_model(name):
    model = jaxpgs.load_pretrained(name)
    env = model.env
    root_fn, recurrent_fn = jaxpgs.make_model_fns(model.module, env)
    state = games.random_positions(env, 0, [4, 9])
    adapt = networks.policy_head(model.params, part="linear")
    ve_pgs = functools.partial(
        jaxpgs.extended_pgs_policy, adapt=adapt, simulations_per_update=4, max_depth=3
    )
    searches = [
        functools.partial(ve_pgs, mode="cached"),
        functools.partial(ve_pgs, mode="constant"),
        mctx.gumbel_muzero_policy,
    ]

    @functools.partial(jax.jit, compiler_options=games.QUICK)
    def plan(params):
        root = root_fn(params, None, state)
        key = jax.random.key(0)
        return [s(params, key, root, recurrent_fn, 8, ~state.legal_action_mask) for s in searches]

    legal = np.asarray(state.legal_action_mask)
    for output in plan(model.params):
        assert legal[np.arange(2), output.action].all()
        np.testing.assert_allclose(np.asarray(output.action_weights).sum(-1), 1, rtol=1e-5)
