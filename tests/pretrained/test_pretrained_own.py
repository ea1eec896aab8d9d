"""Networks and environments of a user's own, and of pgx, are saved and loaded."""

import importlib
import json
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxpgs import envs, networks
from jaxpgs.networks import FullyConnectedResNet, WithOffsets, functional
from jaxpgs.pretrained import load_pretrained, save_pretrained

CODE = '''
import dataclasses
import flax.linen
import jax
import jax.numpy as jnp
from flax import nnx
from jaxpgs import networks

VERSION = 3

@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    left: jax.Array
    current_player: jax.Array
    rewards: jax.Array
    terminated: jax.Array
    legal_action_mask: jax.Array

@dataclasses.dataclass(frozen=True)
class Stones:
    heap: int = 12
    takes: tuple[int, ...] = (1, 2, 3)
    misere: bool = False
    num_players = 2

    @property
    def num_actions(self):
        return len(self.takes)

    def init(self, key=None):
        legal = self.heap >= jnp.array(self.takes)
        return State(jnp.int32(self.heap), jnp.int32(0), jnp.zeros(2), jnp.bool_(False), legal)

    def step(self, state, action):
        left = jnp.maximum(state.left - jnp.array(self.takes)[action], 0)
        over = left == 0
        sign = jnp.where(jnp.arange(2) == state.current_player, 1.0, -1.0)
        rewards = jnp.where(over, -sign if self.misere else sign, 0.0)
        return State(left, 1 - state.current_player, rewards, over, left >= jnp.array(self.takes))

    def observe(self, state):
        return jax.nn.one_hot(state.left, self.heap + 1)

class Plain(Stones):
    """No dataclass of its own, and it does not keep one of its arguments."""
    def __init__(self, heap, misere=False, *, takes=(1, 2)):
        super().__init__(heap, takes)
        object.__setattr__(self, "misere", misere)
        object.__setattr__(self, "heap", heap)

class Doubled(Stones):
    def __init__(self, heap):
        super().__init__(2 * heap)

@dataclasses.dataclass(frozen=True)
class Other:
    """The other side of a game."""
    env: object
    num_players = 2
    num_actions = property(lambda self: self.env.num_actions)

    def init(self, key=None):
        state = self.env.init(key)
        return dataclasses.replace(state, current_player=1 - state.current_player)

    def step(self, state, action):
        return self.env.step(state, action)

    def observe(self, state):
        return self.env.observe(state)

class Net(nnx.Module):
    is_torso_and_heads = True

    def __init__(self, observation_shape, num_actions, width=4, act=nnx.relu, *, bias=True, rngs):
        (size,) = observation_shape
        self.hidden = nnx.Linear(size, width, use_bias=bias, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.policy_head = nnx.Linear(width, num_actions, rngs=rngs)
        self.value = nnx.Linear(width, 1, rngs=rngs)
        self.width, self.bias, self.act = width, bias, act

    def torso(self, observation):
        return self.dropout(self.act(self.hidden(observation)))

    def value_head(self, features):
        return jnp.tanh(self.value(features))[:, 0]

    def __call__(self, observation):
        features = self.torso(observation)
        return self.policy_head(features), self.value_head(features)

class FullyConnectedResNet(Net):
    """Of the name of one of the library's."""

class Hex(Stones):
    """Of the name of one of the library's."""

class Forgetful(Net):
    def __init__(self, inputs, *, actions, rngs):
        super().__init__((inputs,), actions, rngs=rngs)

class Small(networks.FullyConnectedResNet):
    def __init__(self, observation_shape, num_actions, *, width=8, num_blocks=1, rngs):
        sizes = {"width": width, "num_blocks": num_blocks}
        super().__init__(observation_shape, num_actions, **sizes, rngs=rngs)

class Linen(flax.linen.Module):
    num_actions: int
    sizes: tuple[int, ...] = (4,)

    @flax.linen.compact
    def __call__(self, x):
        for size in self.sizes:
            x = flax.linen.relu(flax.linen.Dense(size)(x))
        return flax.linen.Dense(self.num_actions)(x), flax.linen.Dense(1)(x)[:, 0]
'''
NAME = "games_of_a_user"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module, which is imported for the time of a test."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / f"{NAME}.py").write_text(CODE)
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


def make(kind, env, **kwargs):
    """A network without numbers, of which `save` takes the structure."""
    size = jax.eval_shape(lambda: env.observe(env.init(jax.random.key(0)))).shape
    return nnx.eval_shape(lambda: kind(size, env.num_actions, **kwargs, rngs=nnx.Rngs(1)))


def numbers(shapes):
    """Weights to tell from others, and random keys."""

    def fill(shape):
        if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
            return jax.random.key(7, impl=jax.random.key_impl(jnp.zeros((), shape.dtype)))
        return np.random.default_rng(shape.size).normal(size=shape.shape).astype(shape.dtype)

    return jax.tree.map(fill, shapes)


def save(folder, env, module, **knobs):
    params = numbers(functional(module)[0])
    return params, save_pretrained(folder, "own", env=env, module=module, params=params, **knobs)


def load(folder, **knobs):
    return load_pretrained("own", directory=folder, **knobs)


def refused(folder, *parts, **knobs):
    with pytest.raises(ValueError, match=r"own\.json or its weights cannot") as caught:
        load(folder, **knobs)
    for part in parts:
        assert part in str(caught.value)


def edit(folder, **fields):
    """Changes a card on purpose, as its author may."""
    path = folder / "own.json"
    card = json.loads(path.read_text()) | fields
    card.pop("card_sha256", None)
    path.write_text(json.dumps(card))


def test_own_environment_and_network_come_back_by_their_paths(tmp_path, own):
    env = own.Stones(5, (1, 3), True)
    params, card = save(tmp_path, env, make(own.Net, env, width=3, bias=False), seed=4)
    assert card["environment"] == {
        "module": NAME,
        "name": "Stones",
        "kwargs": {"heap": 5, "takes": [1, 3], "misere": True},
        "version": 3,
        "num_actions": 2,
        "observation_shapes": [[6]],
    }
    kwargs = {"width": 3, "bias": False}
    assert card["architecture"] == {"module": NAME, "network": "Net", "kwargs": kwargs}
    loaded = load(tmp_path)
    assert loaded.env == env and hash(loaded.env) == hash(env)
    assert loaded.card == card and type(loaded.module) is own.Net
    chex.assert_trees_all_equal(loaded.params, params)
    # Worked out by hand; nothing is dropped out.
    observation = np.eye(6, dtype=np.float32)[:4]
    logits, value = jax.jit(loaded.apply_fn)(loaded.params, observation)
    hidden = np.maximum(observation @ params["hidden"]["kernel"], 0)
    head, last = params["policy_head"], params["value"]
    np.testing.assert_allclose(logits, hidden @ head["kernel"] + head["bias"], rtol=1e-5)
    want = np.tanh(hidden @ last["kernel"] + last["bias"])[:, 0]
    np.testing.assert_allclose(value, want, rtol=1e-5)


def test_other_environments_by_path(tmp_path, own):
    for env in (
        own.Other(own.Other(envs.Hex(2))),
        own.Plain(6, True),
        own.Hex(4),  # of a name of ours
    ):
        module = make(own.FullyConnectedResNet, env) if env.num_actions < 4 else None  # as well
        module = module or make(own.Small, env, width=4)
        save(tmp_path, env, module)
        loaded = load(tmp_path)
        assert type(loaded.env) is type(env) and loaded.env == env
        assert type(loaded.module) is type(module)


def test_what_computes_otherwise_is_not_made_again(tmp_path, own):
    env = own.Doubled(4)  # its attribute is not what it was made with
    save(tmp_path, env, make(own.Net, env))
    refused(
        tmp_path,
        "pass the environment to load_pretrained",
        "env=...",
        "{'heap': 8}",
        "computes otherwise",
    )
    assert load(tmp_path, env=env).env is env

    env = own.Stones()
    relu, tanh = make(own.Net, env), make(own.Net, env, act=nnx.tanh)
    save(tmp_path, env, relu)
    assert load(tmp_path).module.act is nnx.relu  # its default
    params, _ = save(tmp_path, env, tanh)
    refused(
        tmp_path, "pass the network to load_pretrained", "module=...", "{'width': 4, 'bias': True}"
    )
    loaded = load(tmp_path, module=tanh)
    assert loaded.module.act is nnx.tanh
    chex.assert_trees_all_equal(loaded.params, params)
    refused(tmp_path, "has width 4", "has 5", module=make(own.Net, env, width=5))
    refused(tmp_path, "module of flax", "Stones", module=env)


def test_arguments_that_a_network_does_not_keep(tmp_path, own):
    env = own.Stones()
    module = nnx.eval_shape(lambda: own.Forgetful(13, actions=3, rngs=nnx.Rngs(0)))
    save(tmp_path, env, module)
    refused(tmp_path, "takes inputs, actions, of which it keeps no value", "module=...")
    load(tmp_path, module=module)
    save(tmp_path, env, module, module_kwargs={"inputs": 13, "actions": 3})
    assert type(load(tmp_path).module) is own.Forgetful
    for kwargs, match in (
        ({"inputs": 13, "actions": 4}, r"'policy_head.bias' must be float32\[4\], got float32\[3"),
        ({"inputs": 13}, "takes actions, of which"),
        ({"inputs": 13, "actions": 3, "depth": 1}, "unexpected keyword argument 'depth'"),
        ({"inputs": 13, "actions": nnx.relu}, "which no card can hold"),
    ):
        with pytest.raises(ValueError, match=match):
            save(tmp_path / "new", env, module, module_kwargs=kwargs)
    # A network for another game.
    with pytest.raises(ValueError, match=r"environment's observations, here of shapes \[\[1, 9\]"):
        save(tmp_path / "new", own.Stones(8), module)
    with pytest.raises(ValueError, match=r"logits of shape \[1, 2\].* 2 actions; got \[1, 3\]"):
        save(tmp_path / "new", own.Stones(takes=(1, 2)), module)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("where", ["script", "function"])
def test_classes_without_a_path_are_handed_over(tmp_path, own, where):
    if where == "script":
        names = {"__name__": "__main__"}
        exec(CODE, names)
        game, net = names["Stones"], names["Net"]
        reason = "its class is of a script or a notebook, which no other program can import"
    else:
        inside = {"__module__": NAME, "__qualname__": "f.<locals>.X"}
        game, net = type("X", (own.Stones,), inside), type("X", (own.Net,), inside)
        reason = f"its class is not found as {NAME}.f.<locals>.X"
    env = game(5)
    module = make(net, env)
    params, _ = save(tmp_path, env, module)
    refused(tmp_path, "pass the environment to load_pretrained(..., env=...)", reason)
    refused(tmp_path, "pass the network to load_pretrained(..., module=...)", env=env)
    refused(tmp_path, "has heap 5; the one handed over has 6", env=game(6), module=module)
    refused(tmp_path, "misere False; the one", env=game(5, misere=True), module=module)
    refused(tmp_path, "; the one handed over has", env=envs.Hex(3), module=module)
    refused(tmp_path, "init, step and observe; got 3", env=3, module=module)
    loaded = load(tmp_path, env=game(5), module=module)
    assert loaded.env == env and type(loaded.module) is net
    chex.assert_trees_all_equal(loaded.params, params)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_come_back_as_the_kind_that_they_were(tmp_path, own, impl):
    env = own.Stones()

    class Noisy(own.Net):
        def __init__(self, observation_shape, num_actions, *, rngs):
            super().__init__(observation_shape, num_actions, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(jax.random.key(7, impl=impl)))

    module = make(Noisy, env)
    params, _ = save(tmp_path, env, module)
    loaded = load(tmp_path, module=module)
    chex.assert_trees_all_equal_dtypes(loaded.params, params)
    chex.assert_trees_all_equal(loaded.params, params)


@pytest.mark.lenient
def test_weights_of_64_bits_keep_them(tmp_path, own):
    env = own.Stones()

    class Wide(own.Net):
        def __init__(self, observation_shape, num_actions, *, rngs):
            super().__init__(observation_shape, num_actions, rngs=rngs)
            self.scale = nnx.Param(jnp.full(2, 1 + 1e-12, jnp.float64))

    with jax.enable_x64(True):
        module = make(Wide, env)
        params, _ = save(tmp_path, env, module)
        loaded = load(tmp_path, module=module)
        assert loaded.params["scale"].dtype == jnp.float64
        chex.assert_trees_all_equal(loaded.params, params)


def test_weights_that_no_file_gives_back_are_refused(tmp_path, own):
    env = own.Stones()

    class Half(own.Net):
        def __init__(self, observation_shape, num_actions, *, rngs):
            super().__init__(observation_shape, num_actions, rngs=rngs)
            self.scale = nnx.Param(jnp.ones(2, jnp.bfloat16))

    with pytest.raises(ValueError, match=r"'scale' are bfloat16, .* half=True"):
        save(tmp_path, env, make(Half, env))
    assert not list(tmp_path.glob("*.json"))


def test_loading_imports_nothing_on_a_cards_word(tmp_path, own):
    env = own.Stones()
    save(tmp_path, env, make(own.Net, env))
    del sys.modules[NAME]
    ask = f"{NAME} is not imported", f"import {NAME} first", "trusted=True"
    refused(tmp_path, "The environment is", *ask, "env=...")
    refused(tmp_path, "The network is", *ask, "module=...", env=env)
    assert NAME not in sys.modules
    loaded = load(tmp_path, trusted=True)
    assert type(loaded.env) is sys.modules[NAME].Stones is not own.Stones
    assert load(tmp_path).env == loaded.env

    environment, architecture = loaded.card["environment"], loaded.card["architecture"]
    edit(tmp_path, environment=environment | {"version": 2})
    refused(tmp_path, f"version 2 of Stones, but {NAME} has version 3.")
    edit(tmp_path, environment=environment | {"name": "Gone"})
    refused(tmp_path, f"{NAME} has no class Gone any more", "env=...")
    edit(tmp_path, environment=environment | {"module": f"{NAME}.gone"})
    refused(tmp_path, "cannot be imported", "env=...", trusted=True)
    # Whatever a card names, only environments and modules are made.
    called = tmp_path / "called"
    popen = {"module": "subprocess", "kwargs": {"args": ["touch", str(called)]}}
    edit(tmp_path, environment=environment | popen | {"name": "Popen"})
    refused(tmp_path, "subprocess.Popen lacks the functions init, step and observe")
    edit(tmp_path, environment=environment, architecture=popen | {"network": "Popen"})
    refused(tmp_path, "subprocess.Popen is no module of flax")
    edit(tmp_path, architecture=architecture)
    load(tmp_path)
    assert not called.exists()


def test_modules_of_linen(tmp_path, own):
    env = own.Stones()
    module = own.Linen(3, sizes=[5, 4])
    variables = numbers(jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 13))))
    knobs = {"env": env, "module": module, "params": variables}
    card = save_pretrained(tmp_path, "own", **knobs)
    assert card["architecture"]["kwargs"] == {"num_actions": 3, "sizes": [5, 4]}
    loaded = load(tmp_path)
    assert loaded.module.sizes == (5, 4)
    chex.assert_trees_all_equal(loaded.params, variables)
    chex.assert_trees_all_equal(load(tmp_path, module=module).params, variables)
    variables["params"]["Dense_0"]["kernel"] = np.zeros((12, 5), np.float32)
    with pytest.raises(ValueError, match=r"Linen must take the environment's observations"):
        save_pretrained(tmp_path, "own", **knobs)
    # Another module than the weights are of.
    refused(tmp_path, "sizes [5, 4]; the one", module=own.Linen(3, sizes=(5,)))


def test_offsets_of_an_own_network(tmp_path, own):
    env = own.Stones()

    def build():
        net = own.Small((13,), 3, width=4, rngs=nnx.Rngs(0))
        return WithOffsets(net, ["sharp"])

    params, card = save(tmp_path, env, nnx.eval_shape(build))
    assert card["architecture"]["kwargs"] == {"width": 4, "num_blocks": 1}
    loaded = load(tmp_path)
    assert sorted(loaded.module.offsets) == ["sharp"]
    chex.assert_trees_all_equal(loaded.params, params)


def test_games_of_pgx(tmp_path, monkeypatch):
    pgx = pytest.importorskip("pgx")
    env = pgx.make("tic_tac_toe")
    params, card = save(tmp_path, env, make(FullyConnectedResNet, env, width=4))
    assert card["environment"]["module"] == "pgx" and card["environment"]["name"] == "tic_tac_toe"
    loaded = load(tmp_path)
    assert loaded.env.id == "tic_tac_toe"
    chex.assert_trees_all_equal(loaded.params, params)
    load(tmp_path, env=pgx.make("tic_tac_toe"))
    refused(tmp_path, "num_actions 9; the one", env=pgx.make("connect_four"))
    edit(tmp_path, environment=card["environment"] | {"version": "v99"})
    refused(tmp_path, "version v99 of tic_tac_toe, but pgx has version v")
    edit(tmp_path, environment=card["environment"])
    monkeypatch.setitem(sys.modules, "pgx", None)
    with pytest.raises(ImportError, match=r'pip install "jaxpgs\[pgx\]"'):
        load(tmp_path)
    monkeypatch.undo()


def test_a_game_with_its_last_move(tmp_path):
    game = networks.with_last_move(envs.Hex(3))
    for module in (networks.pattern_policy(game), make(FullyConnectedResNet, game, width=4)):
        params, card = save(tmp_path, game, module)
        assert card["environment"]["name"] == "with_last_move"
        loaded = load(tmp_path)
        assert loaded.env == game
        chex.assert_trees_all_equal(loaded.params, params)
