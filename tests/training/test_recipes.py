"""The recipes beside the cards of what they made."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import jaxpgs
from jaxpgs.checks import refusals_in_one_line
from jaxpgs.training import Run
from jaxpgs.training.recipes import __main__ as recipes
from jaxpgs.training.recipes import distillation, hex_networks, learned_models, samegame_networks
from jaxpgs.training.recipes.starting_positions import make_balanced

HEX = [name for name in jaxpgs.available_pretrained() if name in hex_networks.RECIPES]
STUDENTS = [name for name in jaxpgs.available_pretrained() if name in distillation.RECIPES]
SAMEGAME = [name for name in jaxpgs.available_pretrained() if name in samegame_networks.RECIPES]


def test_every_network_has_a_recipe():
    taught = set(HEX) | set(SAMEGAME) | set(STUDENTS)
    taught |= set(learned_models.RECIPES) & set(jaxpgs.available_pretrained())
    assert taught == set(jaxpgs.available_pretrained())


@pytest.mark.parametrize("name", STUDENTS)
def test_students_are_what_was_done(name):
    net, recipe = jaxpgs.load_pretrained(name), distillation.RECIPES[name]
    kind, sizes = recipe.network
    assert net.card["architecture"]["network"] == kind
    assert sizes.items() <= net.card["architecture"]["kwargs"].items()
    done = {"teacher": recipe.teacher, "iterations": recipe.num_iterations}
    assert net.card["training"] == done


@pytest.mark.slow
@pytest.mark.lenient
def test_a_student_learns_and_goes_on_bit_by_bit(tmp_path):
    env, losses = jaxpgs.envs.Hex(3), []
    teacher, student = (
        jaxpgs.networks.FullyConnectedResNet(
            env.observation_shape, env.num_actions, width=16, num_blocks=0, rngs=nnx.Rngs(seed)
        )
        for seed in (0, 1)
    )

    def note(state, metrics):
        losses.append(metrics["policy_loss"])

    def teach(num_iterations, directory=None):
        return distillation.distill(
            env, student, jaxpgs.networks.functional(teacher), num_iterations=num_iterations,
            batch_size=32, optimizer=optax.adam(1e-2), run=Run(directory=directory, callback=note),
        )  # fmt: skip

    whole = teach(120)
    assert losses[-1] < 0.5 * losses[0]
    teach(60, tmp_path)
    chex.assert_trees_all_equal(teach(120, tmp_path).params, whole.params)


@pytest.mark.slow
@pytest.mark.lenient
def test_a_teacher_plays_and_is_quoted_in_the_networks_frame():
    """Player 1 of Hex sees a transposed board: the same answer is another cell to it."""
    env = jaxpgs.envs.Hex(3)
    student = jaxpgs.networks.FullyConnectedResNet(
        env.observation_shape, env.num_actions, width=4, num_blocks=0, rngs=nnx.Rngs(0)
    )

    def teach(params, observation):
        del params  # it always wants the second cell of the first row
        favourite = 50.0 * (jnp.arange(env.num_actions) == 1)
        return jnp.broadcast_to(favourite, (len(observation), 9)), jnp.zeros(len(observation))

    found = distillation.distill(
        env, student, ({}, teach), num_iterations=2, batch_size=2, random_fraction=0.0
    )
    board = jnp.sign(found.games.labels).reshape(2, 3, 3)
    assert (board == jnp.array([[0, 1, 0], [-1, 0, 0], [0, 0, 0]])).all()
    # A cell of the lesson is legal where its observation is empty.
    key, after = jax.random.key(0), jax.vmap(env.step)(found.games, jnp.array([2, 5]))
    root = jaxpgs.make_root_fn(env, teach)({}, key, after)
    lesson = distillation._lesson(env, key, after, root)
    chex.assert_trees_all_equal(lesson.policy > 0, lesson.observation[..., 2].reshape(2, 9) > 0)


class Dropped(nnx.Module):
    """Its state has a key and a counter."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.policy_head, self.value_head = (nnx.Linear(12, n, rngs=rngs) for n in (4, 1))

    def __call__(self, observation):
        x = self.dropout(observation.reshape(-1, 12))
        return self.policy_head(x), self.value_head(x)[:, 0]


@pytest.mark.slow
def test_a_student_may_drop_units():
    params, teach = jaxpgs.networks.functional(Dropped())
    state = distillation.distill(
        jaxpgs.envs.Hex(2), Dropped(), (params, teach), num_iterations=2, batch_size=2
    )
    assert (state.params["policy_head"]["kernel"] != params["policy_head"]["kernel"]).any()


@pytest.mark.parametrize(
    ("message", "knobs"),
    [
        ("num_iterations must be at least 1, got 0", {"num_iterations": 0}),
        ("batch_size must be at least 1, got 0", {"batch_size": 0}),
        ("random_fraction to be a finite number at least 0 and at most 1", {"random_fraction": 2}),
    ],
)
def test_distillation_refuses_what_it_cannot_do(message, knobs):
    with pytest.raises(ValueError, match=message):
        distillation.distill(
            jaxpgs.envs.Hex(3), None, ({}, None), **({"num_iterations": 1} | knobs)
        )


@pytest.mark.first_case
@pytest.mark.parametrize(
    "module", [hex_networks, learned_models, samegame_networks, distillation],
    ids=lambda module: module.__name__,
)  # fmt: skip
def test_commands_say_in_a_line_what_they_refuse(module, tmp_path):
    (tmp_path / "a file").touch()
    name = next(iter(module.RECIPES))
    with pytest.raises(
        SystemExit, match=r"^python -m jaxpgs.training.recipes: cannot use .*: Not a"
    ):
        recipes.main([name, "--out", str(tmp_path / "a file")])


def test_one_command_trains_all_networks(capsys):
    with pytest.raises(SystemExit):
        recipes.main(["--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in jaxpgs.available_pretrained())
    with pytest.raises(SystemExit):
        recipes.main(["hex-6x6", "--help"])
    assert "--expert" in capsys.readouterr().out


_TINY = ("AlphaZeroResNet", {"num_filters": 4, "num_blocks": 1})
_FEW = {"num_games": 8, "num_steps": 2, "batch_size": 8, "updates_per_iteration": 1}


@pytest.mark.lenient
@pytest.mark.parametrize(
    ("module", "recipe"),
    [
        (distillation, distillation.Distillation(
            "hex-5x5-early", _TINY, 1, {"batch_size": 8}, "bfloat16"
        )),
        (hex_networks, hex_networks.HexRecipe(
            jaxpgs.envs.Hex(3), _TINY, "gumbel_mcts", 2, 1, _FEW, dtype="bfloat16"
        )),
    ],
    ids=["distillation", "expert iteration"],
)  # fmt: skip
def test_what_learns_in_16_bits_is_kept_in_32(module, recipe, tmp_path, monkeypatch):
    made = []
    original = jaxpgs.networks.AlphaZeroResNet
    record = lambda *given, **more: made.append(more.get("dtype")) or original(*given, **more)  # noqa: E731
    monkeypatch.setattr(jaxpgs.networks, "AlphaZeroResNet", record)
    monkeypatch.setattr(module, "RECIPES", {"tiny": recipe})
    module.main(["tiny", "--out", str(tmp_path)])
    assert "bfloat16" in made
    monkeypatch.undo()
    net = jaxpgs.load_pretrained("tiny", directory=tmp_path)
    assert net.card["architecture"]["kwargs"]["dtype"] == "float32"
    assert net.card["training"]["dtype"] == "bfloat16"
    assert {x.dtype for x in jax.tree.leaves(net.params)} == {jnp.dtype("float32")}


def test_games_begin_with_openings_that_a_network_thinks_balanced():
    env = jaxpgs.envs.Hex(2)

    def apply_fn(params, observation):
        del params  # it counts the stones of both sides, weighted by their cells
        weights = jnp.array([0.3, -0.2, 0.1, 0.25])
        value = observation[..., :2].sum(-1).reshape(-1, 4) @ weights
        return jnp.zeros((len(value), 4)), value

    balanced = make_balanced(env, apply_fn, {})
    # By hand: transposing the board, as player 1 sees it, exchanges the cells 1 and 2.
    own, seen = [0.3, -0.2, 0.1, 0.25], [0.3, 0.1, -0.2, 0.25]
    alone = [(1 - x**2) ** 4 for x in seen]
    pairs = [
        [0 if a == b else (1 - (own[a] + own[b]) ** 2) ** 4 for b in range(4)] for a in range(4)
    ]
    expected = jnp.concatenate(
        [jnp.array(pairs) / sum(map(sum, pairs)), jnp.array(alone)[:, None] / sum(alone)], axis=1
    )
    share = balanced.weights.reshape(4, 5)
    chex.assert_trees_all_close(share, expected / 2, atol=1e-6)

    # Each count of 20,000 games lies within 5 standard deviations: fails once in 100,000 seeds.
    number = 20_000
    states = jax.vmap(balanced.init)(jax.random.split(jax.random.key(0), number))
    stones = jnp.sign(states.labels)
    first, reply = jnp.argmax(stones > 0, axis=1), jnp.argmax(stones < 0, axis=1)
    reply = jnp.where((stones < 0).any(axis=1), reply, 4)
    found = jnp.zeros((4, 5)).at[first, reply].add(1)
    assert (abs(found - number * share) <= 5 * jnp.sqrt(number * share * (1 - share))).all()
    assert (states.current_player == jnp.where(reply < 4, 0, 1)).all()
    chex.assert_trees_all_equal(balanced.init(), env.init())

    # The game with other weights is another game, also to functions that are compiled for a game.
    begin = jax.jit(lambda env, key: env.init(key).labels, static_argnums=0)
    for first, reply in ((0, 1), (1, 2)):
        chosen = dataclasses.replace(balanced, weights=jnp.arange(20) == 5 * first + reply)
        two = env.step(env.step(env.init(), first), reply)
        chex.assert_trees_all_equal(begin(chosen, jax.random.key(0)), two.labels)


def test_balanced_openings_may_swap_only_after_a_move():
    env = jaxpgs.envs.Hex(2, swap=True)
    level = lambda _, observation: (jnp.zeros((len(observation), 5)), jnp.zeros(len(observation)))  # noqa: E731
    drawn = make_balanced(env, level, {}).weights.reshape(5, 6) > 0
    replies = ~jnp.eye(4, dtype=bool)
    ones = jnp.ones((4, 1), bool)  # swapping, and no reply
    chex.assert_trees_all_equal(drawn[:4], jnp.concatenate([replies, ones, ones], axis=1))
    assert not drawn[4].any()


@pytest.mark.lenient
def test_a_recipe_begins_with_balanced_openings_of_its_parent(tmp_path, monkeypatch):
    few = _FEW | {"max_random_moves": 0, "evaluate_every": 0}
    parent = hex_networks.HexRecipe(jaxpgs.envs.Hex(3), _TINY, "gumbel_mcts", 2, 1, few)
    child = parent._replace(parent="parent", balanced=True)
    monkeypatch.setattr(hex_networks, "RECIPES", {"parent": parent, "child": child})
    given = []

    def record(env, apply_fn, params):
        given.append((params, make_balanced(env, apply_fn, params)))
        return given[-1][1]

    monkeypatch.setattr(hex_networks, "make_balanced", record)
    hex_networks.main(["parent", "--out", str(tmp_path)])
    assert not given
    hex_networks.main(["child", "--out", str(tmp_path)])
    ((params, env),) = given
    chex.assert_trees_all_equal(params, jaxpgs.load_pretrained("parent", directory=tmp_path).params)
    run = jaxpgs.training.read_run(tmp_path / "child" / "checkpoints")
    assert "FromPositions(size=3" in str(run)
    net = jaxpgs.load_pretrained("child", directory=tmp_path)
    assert net.env == jaxpgs.envs.Hex(3) and net.card["training"]["balanced"] is True
    # The same command finds its run again, and other openings are another run.
    hex_networks.main(["child", "--out", str(tmp_path)])
    monkeypatch.setattr(
        hex_networks, "make_balanced",
        lambda *given: dataclasses.replace(env, weights=env.weights[::-1]),
    )  # fmt: skip
    with pytest.raises(SystemExit, match=r"holds a run with rules\.weights"):
        hex_networks.main(["child", "--out", str(tmp_path)])


@pytest.mark.parametrize(("have", "used"), [(1, None), (2, 2), (3, 2), (8, 8), (12, 8)])
def test_recipes_of_hex_use_as_many_devices_as_divide_their_games(have, used, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: list(range(have)))
    found = hex_networks._devices(hex_networks.RECIPES["hex-9x9-large"])
    assert found == (None if used is None else list(range(used)))


@pytest.mark.lenient
def test_the_first_step_of_a_recipe_has_its_size():
    recipe = hex_networks.RECIPES["hex-9x9-large"]
    for step_size in (1e-3, recipe.step_size):
        optimizer = hex_networks._optimizer(recipe._replace(step_size=step_size))
        weight, gradient = jnp.zeros(1), jnp.ones(1)
        update, _ = optimizer.update(gradient, optimizer.init(weight), weight)
        assert float(update[0]) == pytest.approx(-step_size, rel=1e-3)


def test_a_stopped_recipe_of_hex_keeps_its_seconds(tmp_path, monkeypatch):
    seen = []

    def stopped(*args, run, **settings):
        seen.append(run.devices)
        raise SystemExit(143)

    monkeypatch.setattr(hex_networks, "_devices", lambda recipe: ["this"])
    monkeypatch.setattr(hex_networks, "by_name", lambda train: stopped)
    with pytest.raises(SystemExit, match="143"):
        hex_networks.main(["hex-5x5", "--out", str(tmp_path)])
    assert seen == [["this"]]
    assert (tmp_path / "hex-5x5" / "seconds.txt").exists()


def test_a_parent_that_has_to_be_trained_first_is_named(tmp_path):
    message = rf"starts from 'hex-11x11-begun'.*recipes hex-11x11-begun --out {tmp_path}$"
    with pytest.raises(SystemExit, match=message):
        hex_networks.main(["hex-11x11", "--out", str(tmp_path)])


def test_only_refusals_of_ours_lose_their_tracebacks():
    message = "^me: Hex needs an integer size from 2 to 19, got 1"
    with pytest.raises(SystemExit, match=message), refusals_in_one_line("me"):
        jaxpgs.envs.Hex(1)
    with pytest.raises(ValueError, match="bugs keep theirs"), refusals_in_one_line("me"):
        raise ValueError("bugs keep theirs")


@pytest.mark.parametrize("name", HEX)
def test_recipes_of_hex_are_what_was_done(name):
    net, recipe = jaxpgs.load_pretrained(name), hex_networks.RECIPES[name]
    kind, sizes = recipe.network
    assert net.env == recipe.env and net.card["architecture"]["network"] == kind
    assert sizes.items() <= net.card["architecture"]["kwargs"].items()
    done = dict(net.card["training"])
    assert done.pop("iterations") == recipe.num_iterations
    expert = done.pop("expert")  # the first cards name the function and the simulations in one
    first = expert == f"mctx.gumbel_muzero_policy, {recipe.num_simulations} simulations"
    assert first or (expert, done.pop("simulations")) == (recipe.expert, recipe.num_simulations)
    assert done.pop("parent", None) == recipe.parent
    assert done.pop("dtype", "float32") == recipe.dtype
    assert done.pop("step_size", 1e-3) == recipe.step_size
    assert done.pop("balanced", False) == recipe.balanced
    assert done.items() <= recipe.games.items() if first else done == recipe.games


@pytest.mark.parametrize("name", SAMEGAME)
def test_recipes_of_samegame_are_what_was_done(name):
    net, recipe = jaxpgs.load_pretrained(name), samegame_networks.RECIPES[name]
    assert net.env == recipe.env
    assert recipe.network.items() <= net.card["architecture"]["kwargs"].items()
    done = net.card["training"]
    assert done["simulations"] == recipe.num_simulations and done["parent"] == recipe.parent
    assert (done["generations"], done["num_runs"]) == (recipe.num_iterations, recipe.num_runs)
    assert done["judge"] == listed(recipe.judge) and done.get("first") == listed(recipe.first)
    assert recipe.training.items() <= done.items()


def listed(knobs):
    """Arguments as JSON keeps them."""
    return json.loads(json.dumps(knobs))


@pytest.mark.parametrize(
    ("name", "num_runs", "at_once"),
    [("samegame-7x7", 16, 16), ("samegame-7x7", 300, 150), ("samegame-10x10", 100, 4)],
)
def test_recipes_of_samegame_take_any_number_of_boards(name, num_runs, at_once):
    recipe = samegame_networks.RECIPES[name]._replace(num_iterations=1, num_runs=num_runs)
    training = samegame_networks._training(recipe)
    assert training["runs_at_once"] == at_once
    assert num_runs % at_once == training["first_runs"] % at_once == 0
    samegame_networks._optimizer(recipe, training)  # also of less than a batch
