"""Patterns against a slow search for them, their symmetries, and games that show the last move."""

import collections
import functools
import itertools

import games
import jax
import jax.numpy as jnp
import numpy as np
import pgx
import pytest

import jaxpgs
from jaxpgs import envs, networks
from jaxpgs.networks.layers.geometry import EMPTY, LAST, OTHER

GAMES = {
    "hex": lambda: envs.Hex(4, swap=True),
    "yavalath": lambda: envs.Yavalath(3),
    "breakthrough": lambda: envs.Breakthrough(6, 4),
    "connect_four": lambda: pgx.make("connect_four"),
    "othello": lambda: pgx.make("othello"),
}
STEPS, BATCH = 14, 4
FEW = ("opposite", "ring", "answer")  # to compile little
OFTEN = ("hex", "connect_four")
every_game = pytest.mark.parametrize("name", games.mostly_slow(GAMES, *OFTEN))
jit = functools.partial(jax.jit, compiler_options=games.QUICK)


class Played:
    """Random games, `[STEPS, BATCH]`, of a game that shows the last move and of the game itself."""

    def __init__(self, name):
        with games.lenient_promotion():
            self.inner = GAMES[name]()
            self.env = networks.with_last_move(self.inner)
            key = jax.random.key(3)
            self.states, self.plain, self.actions = jit(self._play)(key)
            self.codes = np.asarray(jax.vmap(jax.vmap(self.env.observe))(self.states))
            self.planes = np.asarray(jax.vmap(jax.vmap(self.inner.observe))(self.plain))
        self.geometry = self.env.geometry
        self.module = networks.pattern_policy(self.env)
        self.params, apply_fn = networks.functional(self.module)
        self.apply_fn = apply_fn
        self.torso, self.head = jit(apply_fn.torso), jit(apply_fn.policy_head)

    def _play(self, key):
        def step(carry, key):
            state, plain = carry
            legal = plain.legal_action_mask & ~plain.terminated[:, None]
            action = jax.random.categorical(key, jnp.where(legal, 0.0, -1e9))
            after = jax.vmap(self.env.step)(state, action), jax.vmap(self.inner.step)(plain, action)
            return after, (state, plain, action)

        keys = jax.random.split(key, BATCH)
        start = jax.vmap(self.env.init)(keys), jax.vmap(self.inner.init)(keys)
        return jax.lax.scan(step, start, jax.random.split(key, STEPS))[1]

    def random_logits(self, codes):
        kernel = np.random.default_rng(0).normal(size=self.module.num_weights)
        params = {"policy_head": {"linear": {"kernel": jnp.asarray(kernel, jnp.float32)}}}
        return np.asarray(self.head(params, self.torso(self.params, jnp.asarray(codes))))


@functools.cache
def played(name):
    return Played(name)


def moved_to(name, played, t, b):
    """The cell that the player who moves at t + 1 sees as that of move t; -1 for none."""
    action = int(played.actions[t, b])
    if name == "hex":
        if action == 16:
            return -1
        # Player 0 has moved, so player 1 looks at it.
        return action % 4 * 4 + action // 4 if played.plain.current_player[t, b] == 0 else action
    if name == "breakthrough":
        source, direction = divmod(action, 3)
        return 23 - (source - 4 + direction - 1)
    if name == "connect_four":
        column = played.codes[t, b].reshape(6, 7)[:, action]
        return ((column == EMPTY).sum() - 1) * 7 + action
    return action if action < len(played.codes[t, b]) else -1


@pytest.mark.slow
@every_game
def test_last_move_shows_the_game_as_it_is_and_the_move(name):
    game = played(name)
    for field in ("current_player", "rewards", "terminated", "legal_action_mask"):
        np.testing.assert_array_equal(getattr(game.states, field), getattr(game.plain, field))
    assert game.codes.dtype == np.int8 and game.codes.shape[2:] == game.env.observation_shape
    rows, columns = game.geometry.coordinates.T
    own, other = np.moveaxis(game.planes[:, :, rows, columns, :2] != 0, -1, 0)
    np.testing.assert_array_equal(np.where(game.codes == LAST, OTHER, game.codes), own + 2 * other)
    assert not (game.codes[0] == LAST).any()
    compared = 0
    for t, b in itertools.product(range(STEPS - 1), range(BATCH)):
        if game.states.terminated[t + 1, b]:
            continue
        cell = moved_to(name, game, t, b)
        found = np.flatnonzero(game.codes[t + 1, b] == LAST).tolist()
        assert found == ([] if cell < 0 else [cell])
        compared += 1
    assert compared > 20
    assert hasattr(game.env, "policy_logits") == (name == "hex")


@pytest.mark.slow
@every_game
def test_anchors_are_the_cells_that_an_action_touches(name):
    game = played(name)
    anchors = np.asarray(game.geometry.anchors(jnp.asarray(game.codes)))
    legal = np.asarray(game.plain.legal_action_mask & ~game.plain.terminated[..., None])
    if name == "hex":
        with games.lenient_promotion():
            legal = jax.vmap(jax.vmap(game.inner.network_policy))(game.plain, legal)
        legal = np.asarray(legal)
    moves = legal.copy()
    if name in ("hex", "othello"):
        moves[..., -1] = False
    playable = anchors[..., 0] >= 0
    assert (playable | ~moves).all()
    if name in ("yavalath", "breakthrough", "connect_four"):
        on = ~np.asarray(game.plain.terminated)
        np.testing.assert_array_equal(playable[on], legal[on])
    if name == "connect_four":
        below = anchors[..., 0] + 7
        codes = np.pad(game.codes, ((0, 0), (0, 0), (0, 7)), constant_values=1)
        held = np.take_along_axis(codes, np.where(playable, below, 48), axis=-1)
        assert (held != EMPTY).all()
        above = np.where(anchors[..., 0] >= 7, anchors[..., 0] - 7, -1)
        np.testing.assert_array_equal(anchors[..., 1], above)
    if name == "breakthrough":
        t, b, a = np.argwhere(playable)[5]
        source, direction = divmod(int(a), 3)
        assert anchors[t, b, a].tolist() == [source - 4 + direction - 1, source]


def slow_patterns(geometry, templates, codes, cell):
    """All patterns around a cell, each in the least of its forms, with template and count."""
    names = ("empty", "own", "other", *geometry.edge_names)
    found = collections.Counter()
    for template in templates:
        seen = set()
        for matrix in geometry.lattice:
            turned = [tuple(np.array(matrix) @ offset) for offset in template.cells]
            last = None if template.last is None else tuple(np.array(matrix) @ template.last)
            if (frozenset(turned), last) in seen:
                continue
            seen.add((frozenset(turned), last))

            def look(offset):
                r, c = geometry.coordinates[cell] + offset
                here = np.flatnonzero((geometry.coordinates == (r, c)).all(axis=1))
                if len(here):
                    return codes[here[0]]
                rows = geometry.coordinates[:, 0].max() + 1
                return 4 + (geometry.name == "hex" and 0 <= r < rows)

            if last is not None and look(last) != LAST:
                continue
            held = {offset: {3: 2, 4: 3, 5: 4}.get(int(look(offset)), int(look(offset)))
                    for offset in turned}  # fmt: skip
            cells = [(offset, names[code]) for offset, code in held.items()]
            found[template.name, least(geometry, cells, last)] += 1
    return found


def least(geometry, cells, last):
    """The least form of a pattern among those that share its weight."""
    if last is not None:
        cells = [*cells, (last, "last move")]
    forms = []
    for matrix in geometry.shared:
        turned = [(tuple((np.array(matrix) @ offset).tolist()), held) for offset, held in cells]
        forms.append(tuple(sorted(turned)))
    return min(forms)


@pytest.mark.first_case
@every_game
def test_features_are_the_patterns_that_a_slow_search_finds(name):
    game = played(name)
    module, geometry = game.module, game.geometry
    codes = game.codes.reshape(STEPS * BATCH, -1)
    anchors = np.asarray(geometry.anchors(jnp.asarray(codes)))
    weights = module.weights_of(game.torso(game.params, jnp.asarray(codes)))
    rng = np.random.default_rng(1)
    reactive = 0
    for b, a in rng.permutation(np.argwhere(anchors[..., 0] >= 0))[:40]:
        want = collections.Counter()
        for i, cell in enumerate(anchors[b, a]):
            if cell >= 0:
                found = slow_patterns(geometry, module.templates, codes[b], cell)
                anchor = geometry.anchor_names[i]
                want.update({(anchor, *key): count for key, count in found.items()})
        got = collections.Counter()
        for index in weights[b, :, a]:
            if index < module.num_weights:
                pattern = module.describe(int(index))
                form = least(geometry, pattern.cells, None)
                got[pattern.anchor, pattern.template, form] += 1
                reactive += any(held == "last move" for _, held in pattern.cells)
        assert got == want
    assert reactive > 1


@pytest.mark.first_case
@every_game
def test_no_two_weights_are_for_the_same_pattern(name):
    game = played(name)
    each = game.module.num_weights // len(game.geometry.anchor_names)
    picked = np.random.default_rng(2).permutation(each)[:400]
    patterns = [game.module.describe(int(index)) for index in picked]
    forms = {(p.template, least(game.geometry, p.cells, None)) for p in patterns}
    assert len(forms) == len(picked)


def images(name, game, codes, logits):
    """Turned and reflected boards with the logits that they must have."""
    if name == "hex":
        cells = np.concatenate([logits[:, :16][:, ::-1], logits[:, 16:]], axis=1)
        return [(codes[:, ::-1], cells)]
    if name == "yavalath":
        rows, columns = game.geometry.coordinates.T
        board = np.zeros((len(codes), 5, 5, 1), np.int8)
        board[:, rows, columns, 0] = codes
        forms = game.inner.symmetries(jnp.asarray(board), jnp.asarray(logits))
        assert len(forms) == 12
        return [(np.asarray(x)[:, rows, columns, 0], np.asarray(y)) for x, y in forms]
    if name == "breakthrough":
        mirrored = codes.reshape(-1, 6, 4)[:, :, ::-1].reshape(codes.shape)
        return [(mirrored, logits.reshape(-1, 6, 4, 3)[:, :, ::-1, ::-1].reshape(logits.shape))]
    if name == "connect_four":
        return [(codes.reshape(-1, 6, 7)[:, :, ::-1].reshape(codes.shape), logits[:, ::-1])]

    def turn(x, k, flip):
        board = np.rot90(x[:, :64].reshape(-1, 8, 8), k, axes=(1, 2))
        board = board[:, :, ::-1] if flip else board
        return np.concatenate([board.reshape(len(x), 64), x[:, 64:]], axis=1)

    turns = itertools.product(range(4), (False, True))
    return [(turn(codes, k, flip), turn(logits, k, flip)) for k, flip in turns]


@every_game
def test_a_turned_board_has_the_turned_logits(name):
    game = played(name)
    codes = game.codes.reshape(STEPS * BATCH, -1)
    logits = game.random_logits(codes)
    assert np.ptp(logits, axis=1).max() > 1
    for turned, want in images(name, game, codes, logits):
        np.testing.assert_allclose(game.random_logits(turned), want, atol=1e-4)


def test_connect_fours_landing_cell_decides():
    game = played("connect_four")
    codes = np.zeros((1, 42), np.int8)
    codes[0, [41, 34]] = 1, 2
    anchors = np.asarray(game.geometry.anchors(jnp.asarray(codes)))[0]
    assert anchors[:, 0].tolist() == [35, 36, 37, 38, 39, 40, 27]
    assert anchors[6].tolist() == [27, 20]
    codes[0, 6::7] = 1
    assert np.asarray(game.geometry.anchors(jnp.asarray(codes)))[0, 6].tolist() == [-1, -1]


def test_untrained_it_is_uniform_and_planes_are_as_good_as_codes():
    game = played("hex")
    codes = game.codes[7].copy()
    logits, value = jit(game.apply_fn)(game.params, jnp.asarray(codes))
    assert logits.shape == (BATCH, 17) and not logits.any() and not value.any()
    codes[codes == LAST] = OTHER
    features = game.torso(game.params, jnp.asarray(game.planes[7]))
    np.testing.assert_array_equal(features, game.torso(game.params, jnp.asarray(codes)))
    mask = networks.policy_head(game.params, part="linear")
    assert mask == {"policy_head": {"linear": {"kernel": True}}}


@pytest.mark.first_case
@pytest.mark.parametrize("name", games.mostly_slow(["hex", "breakthrough", "connect_four"], *OFTEN))
def test_the_gradient_counts_the_patterns(name):
    game = played(name)
    features = game.torso(game.params, jnp.asarray(game.codes[5]))
    cotangent = np.random.default_rng(4).normal(size=(BATCH, game.env.num_actions))
    cotangent = cotangent.astype(np.float32)

    def gradient_of(params):
        _, backward = jax.vjp(lambda params: game.apply_fn.policy_head(params, features), params)
        return backward(jnp.asarray(cotangent))[0]

    gradient = jit(gradient_of)(game.params)
    index = game.module.weights_of(features)
    want = np.zeros(game.module.num_weights + 1, np.float32)
    np.add.at(want, index, np.broadcast_to(cotangent[:, None], index.shape))
    got = np.asarray(gradient["policy_head"]["linear"]["kernel"])
    np.testing.assert_allclose(got, want[:-1], atol=1e-4)
    # Finite differences, which are exact as all is linear.
    step = np.random.default_rng(5).normal(size=got.shape).astype(np.float32)
    moved = game.head({"policy_head": {"linear": {"kernel": jnp.asarray(step)}}}, features)
    np.testing.assert_allclose(np.vdot(moved, cotangent), np.vdot(got, step), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", games.mostly_slow(["rollouts", "tree"], "tree"))
def test_a_search_adapts_the_weights(mode):
    env = networks.with_last_move(envs.Hex(3))
    templates = [t for t in networks.default_templates(env.geometry) if t.name in FEW]
    module = networks.pattern_policy(env, templates=templates, value=True)
    params, apply_fn = networks.functional(module)
    params["value_head"]["linear"]["kernel"] = jnp.linspace(-1.0, 1.0, module.num_weights)
    state = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 2))
    state = jit(jax.vmap(env.step))(state, jnp.array([4, 2]))

    def search(params, state):
        root = jaxpgs.make_root_fn(env, apply_fn)(params, None, state)
        return jaxpgs.pgs_policy(
            params,
            jax.random.key(1),
            root,
            jaxpgs.make_recurrent_fn(env, apply_fn),
            24,
            mode=mode,
            adapt=networks.policy_head(params),
            simulations_per_update=4,
        )

    with games.lenient_promotion():
        output = jit(search)(params, state)
    assert np.take_along_axis(
        np.asarray(state.legal_action_mask), np.asarray(output.action)[:, None], axis=1
    ).all()
    kernel = np.asarray(output.search_state.params["policy_head"]["linear"]["kernel"])
    assert kernel.shape == (2, module.num_weights) and np.isfinite(kernel).all()
    observation = jax.vmap(env.observe)(state)
    features = module.torso(observation)
    assert np.isfinite(output.action_weights).all()
    for b in range(2):
        adapted = {"linear": {"kernel": jnp.asarray(kernel[b])}}
        logits = apply_fn.policy_head(params | {"policy_head": adapted}, features[b : b + 1])
        assert np.ptp(logits) > 1e-4


@pytest.mark.slow
def test_it_is_saved_and_loaded(tmp_path):
    env = envs.Hex(3)
    everything = networks.default_templates(networks.board_geometry(env))
    templates = [t for t in everything if t.name in FEW]
    module = networks.pattern_policy(env, templates=templates, value=True)
    params, apply_fn = networks.functional(module)
    params = jax.tree.map(lambda x: jax.random.normal(jax.random.key(6), x.shape), params)
    jaxpgs.save_pretrained(tmp_path, "patterns", env=env, module=module, params=params)
    loaded = jaxpgs.load_pretrained("patterns", directory=tmp_path)
    assert loaded.module.templates == tuple(templates)
    codes = jnp.asarray(np.random.default_rng(0).integers(0, 4, (5, 9)), jnp.int8)
    for want, got in zip(
        apply_fn(params, codes), loaded.apply_fn(loaded.params, codes), strict=True
    ):
        np.testing.assert_array_equal(want, got)
        assert np.ptp(want) > 0


def test_weights_serve_boards_of_every_size():
    small, large = (networks.pattern_policy(envs.Hex(size)) for size in (3, 7))
    assert small.num_weights == large.num_weights
    assert small.describe(99) == large.describe(99)
    assert networks.board_geometry(envs.Hex(5)) is networks.board_geometry(envs.Hex(5))


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"othello, but not of 'samegame'.*BoardGeometry"):
        networks.with_last_move(envs.SameGame())
    env = networks.with_last_move(envs.Hex(3))
    far = networks.Template("far", ((0, 4),))
    many = networks.Template("many", (*itertools.product((0, 1, 2), (1, 2)), (3, 3)))
    for template in (far, many):
        with pytest.raises(ValueError, match="few cells, at most 3 away"):
            networks.pattern_policy(env, templates=[template])
    with pytest.raises(ValueError, match=r"must have shape \(B, 9\) or .* got \(2, 8\)"):
        networks.pattern_policy(env)(jnp.zeros((2, 8)))
    with pytest.raises(AttributeError, match="LastMove has no attribute 'symmetries'"):
        _ = env.symmetries
