"""What a search gives a model and takes from it: rows, keys, shapes and types, as in mctx."""

import functools

import games
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pytest
from games import lenient_promotion, mostly_slow
from scipy import stats as scipy_stats

import jaxpgs
from jaxpgs.adapters.environments import chance_key
from jaxpgs.search import loop, run
from jaxpgs.search.models import dataflow

B, A = 3, 4
FIELDS = ("reward", "discount", "value", "prior_logits")


def make_fn(**changes):
    """A walk along a line whose policy has a torso; what `changes` names goes through a function.

    The state is where one is, and how many steps were taken.
    """

    def recurrent_fn(params, rng_key, action, state):
        del rng_key
        place, count = state
        place = place + 0.25 * action.astype(jnp.float32)
        seen = jnp.stack([jnp.sin(place), jnp.cos(place)], axis=-1)
        output = {
            "reward": jnp.sin(3 * place),
            "discount": 0 * place - 0.9,
            "value": jnp.cos(2 * place),
            "prior_logits": jnp.tanh(seen @ params["torso"]) @ params["head"],
            "embedding": (place, count + 1),
        }
        output |= {name: change(output[name]) for name, change in changes.items()}
        embedding = output.pop("embedding")
        return mctx.RecurrentFnOutput(**output), embedding

    return recurrent_fn


def make_params():
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return {"torso": draw(2, 5), "head": draw(5, A)}


def make_root(embedding=None, batch_size=B):
    place = jnp.linspace(0.0, 2.0, B)[:batch_size]
    if embedding is None:
        embedding = place, jnp.zeros(batch_size, jnp.int32)
    return mctx.RootFnOutput(
        prior_logits=jnp.zeros((batch_size, A)), value=jnp.cos(2 * place), embedding=embedding
    )


HEAD = {"adapt": "head"}
# Models that come apart, models that adapt as a whole, and those of which nothing adapts.
SEARCHES = {
    "mcs": (jaxpgs.search.mcs_search, {}),
    "mcs, rollouts": (jaxpgs.search.mcs_search, {"mode": "rollouts"}),
    "pgs": (jaxpgs.search.pgs_search, HEAD | {"mode": "tree"}),
    "pgs, rollouts": (jaxpgs.search.pgs_search, HEAD | {"mode": "rollouts"}),
    "pgs, whole": (jaxpgs.search.pgs_search, {"adapt": "everything", "mode": "rollouts"}),
    "pgs, fixed": (jaxpgs.search.pgs_search, HEAD | {"truncation": jaxpgs.truncation.fixed(2)}),
    "mcts": (jaxpgs.search.batched_mcts_search, {}),
    "gumbel mcts": (jaxpgs.search.gumbel_mcts_search, {}),
    "pgs, reuse of rollouts": (
        jaxpgs.search.pgs_search, HEAD | {"mode": "rollouts", "reuse": jaxpgs.reuse.Reuse(2)},
    ),
}  # fmt: skip


# One of each kind.
FEW = ("mcs", "mcs, rollouts", "pgs", "pgs, whole", "gumbel mcts")


def search_of(name, recurrent_fn, count=8, **knobs):
    make, more = SEARCHES[name]
    return make(recurrent_fn, count, **more | knobs)


def every_action(name):
    """Knobs by which a search of as many simulations takes every action once."""
    if name == "gumbel mcts":
        return {"max_num_considered_actions": A, "gumbel_scale": 0.0}
    return {"root_selection": jaxpgs.selection.ucb1()}


@functools.cache
def compiled(search):
    return jax.jit(functools.partial(run, search), compiler_options=games.QUICK)


def searched(search, key, root, params=None):
    params = make_params() if params is None else params
    return compiled(search)(params, key, root).search_state


@functools.cache
def plain(name):
    """The answer of a search of the walk as it is, two simulations at a time."""
    search = search_of(name, make_fn(), simulations_per_update=2)
    return searched(search, jax.random.key(0), make_root())


# --- rows -----------------------------------------------------------------------------------------


PAYS = np.random.default_rng(1).permutation(B * A).reshape(B, A).astype(np.float32)


def paying_fn(name):
    """A model that pays by a table of the roots, in two parts where something adapts."""

    def pay(action):
        assert action.shape == (B,)
        return jnp.take_along_axis(jnp.asarray(PAYS), action[:, None], axis=1)[:, 0]

    def recurrent_fn(params, rng_key, action, state):
        output, state = make_fn()(params, rng_key, action, state)
        return output.replace(reward=pay(action), discount=0 * output.reward), state

    def expand(params, rng_key, action, state):
        output, state = recurrent_fn(params, rng_key, action, state)
        features = jnp.stack([jnp.sin(state[0]), jnp.cos(state[0])], axis=-1) @ params["torso"]
        return jaxpgs.base.Expansion(output.reward, output.discount, output.value, features), state

    if "adapt" not in SEARCHES[name][1]:
        return recurrent_fn
    return jaxpgs.base.SplitRecurrentFn(expand, lambda params, x, _: jnp.tanh(x) @ params["head"])


@functools.cache
def mctxs_answer():
    with lenient_promotion():
        search = functools.partial(
            mctx.gumbel_muzero_policy, num_simulations=8, gumbel_scale=0.0,
            recurrent_fn=paying_fn("mcs"),
        )  # fmt: skip
        return jax.jit(search)(make_params(), jax.random.key(0), make_root()).search_tree.summary()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_walks"),
    mostly_slow(
        [(name, num) for name in SEARCHES if "whole" not in name for num in (1, 2)],
        ("mcs, rollouts", 2), ("gumbel mcts", 1),
    ),
)  # fmt: skip
def test_a_closure_may_have_a_row_for_each_root(name, num_walks):
    """As with mctx, which calls the model with the roots in their order."""
    knobs = {"simulations_per_update": num_walks} | every_action(name)
    state = searched(search_of(name, paying_fn(name), **knobs), jax.random.key(0), make_root())
    assert (state.visits > 0).all()
    np.testing.assert_allclose(state.qvalues, PAYS, rtol=1e-6)
    expected = mctxs_answer()
    tried = np.asarray(expected.visit_counts) > 0
    assert tried.any(axis=-1).all()
    np.testing.assert_allclose(
        np.asarray(state.qvalues)[tried], np.asarray(expected.qvalues)[tried], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "per_root"),
    mostly_slow(
        [(name, each) for name in SEARCHES for each in (False, True)],
        ("mcs", False), ("pgs", True), ("pgs, whole", False), ("mcs, rollouts", True),
    ),
)  # fmt: skip
def test_how_many_rows_a_model_is_given(name, per_root):
    """B in the order of the roots with one key; K of one root with a key for each; whole, each."""
    sizes = set()

    def recurrent_fn(params, rng_key, action, state):
        sizes.add((len(action), len(state[0])))
        return make_fn()(params, rng_key, action, state)

    key = jax.random.split(jax.random.key(0), B) if per_root else jax.random.key(0)
    search = search_of(name, recurrent_fn, simulations_per_update=5)
    root = make_root()
    carry = jax.eval_shape(functools.partial(jaxpgs.search.init, search), make_params(), key, root)
    sizes.clear()
    jax.eval_shape(functools.partial(jaxpgs.search.step, search), make_params(), carry)
    # Models are cut by what they do to 2, 3 and B states; what adapts as a whole has a call a root.
    sizes -= {(2, 2), (B, B)} if per_root or name == "pgs, whole" else {(2, 2)}
    wanted = {(1, 1)} if name == "pgs, whole" else {(5, 5)} if per_root else {(B, B)}
    # Of a model that was cut, the program is known by now.
    came_apart = search.adapt == "head"
    assert (sizes - {(1, 1)} == wanted - {(1, 1)} and wanted <= sizes) or came_apart


# --- shapes ---------------------------------------------------------------------------------------

SHAPES = {
    "one for all": lambda x: x[:1],
    "a column": lambda x: x[:, None],
    "none": lambda x: x[0],
    "one too many": lambda x: jnp.concatenate([x, x[:1]]),
}
WRONG = [
    *((field, how) for field in FIELDS for how in SHAPES),
    ("prior_logits", "an action less"),
    ("embedding", "one for all"),
    ("embedding", "a column"),
]


@pytest.mark.each_value
@pytest.mark.parametrize(("field", "how"), WRONG)
def test_wrong_shapes_are_named(field, how):
    change = SHAPES.get(how, lambda x: x[:, :-1])
    changed = change if field != "embedding" else (lambda state: (state[0], change(state[1])))
    shape = (B, A) if field == "prior_logits" else (B,)
    got = jax.eval_shape(change, jnp.zeros(shape)).shape
    message = r"recurrent_fn must return {}.* of shape {}, a row .*; got {}\.".format(
        field, *(str([*x]).replace("[", r"\[").replace("]", r"\]") for x in (shape, got))
    )
    for name, num_walks in (("mcs", 1), ("mcs, rollouts", 4), ("pgs, whole", 1)):
        recurrent_fn = make_fn(**{field: changed})
        search = search_of(name, recurrent_fn, simulations_per_update=num_walks)
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(
                functools.partial(run, search), make_params(), jax.random.key(0), make_root()
            )


@pytest.mark.parametrize("field", [*FIELDS, "embedding"])
def test_wrong_shapes_of_a_model_in_two_parts_are_named(field):
    wrong = {"prior_logits": lambda x: x[:, :-1]}.get(field, lambda x: x[:, None])

    def expand(params, rng_key, action, place):
        number = {name: jnp.sin(place) for name in ("reward", "discount", "value")}
        if field in number:
            number[field] = wrong(number[field])
        after = wrong(place) if field == "embedding" else place
        return jaxpgs.base.Expansion(**number, features=place[:, None]), after

    def policy(params, features, place):
        logits = features @ params["head"][:1]
        return wrong(logits) if field == "prior_logits" else logits

    split_fn = jaxpgs.base.SplitRecurrentFn(expand, policy)
    for mode in ("tree", "rollouts"):
        search = jaxpgs.search.pgs_search(split_fn, 8, adapt="head", mode=mode)
        root = make_root(embedding=jnp.zeros(B))
        with pytest.raises(ValueError, match=f"recurrent_fn must return {field} of shape"):
            jax.eval_shape(functools.partial(run, search), make_params(), jax.random.key(0), root)


def test_embeddings_of_another_structure_are_named():
    for name in SEARCHES:
        search = search_of(name, make_fn(embedding=lambda state: state[0]))
        with pytest.raises(ValueError, match=r"embedding of the root's structure; expected .*got"):
            jax.eval_shape(
                functools.partial(run, search), make_params(), jax.random.key(0), make_root()
            )


# --- types ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "returned"),
    [("int8", "int32"), ("int32", "int16"), ("uint8", "int32"), ("float32", "int32")],
)
@pytest.mark.parametrize("name", mostly_slow(FEW[:-1], "mcs"))
@pytest.mark.each_value
def test_states_keep_the_type_of_the_roots(name, own, returned):
    """As mctx, which writes them into arrays of the root's."""
    seen = set()

    def widen(state):
        seen.add(str(state[1].dtype))
        return state[0], state[1].astype(returned)

    search = search_of(name, make_fn(embedding=widen), simulations_per_update=2)
    root = make_root((jnp.linspace(0.0, 2.0, B), jnp.zeros(B, own)))
    state = searched(search, jax.random.key(0), root)
    assert seen == {own}
    np.testing.assert_array_equal(state.visits, plain(name).visits)
    np.testing.assert_allclose(state.qvalues, plain(name).qvalues, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "own", "got"),
    [
        (lambda state: (state[0], state[1].astype(jnp.float32)), "int32", "float32"),
        (lambda state: (jax.random.split(jax.random.key(0), B), state[1]), "float32", "key"),
    ],
)
def test_states_of_another_kind_are_refused(change, own, got):
    for name in SEARCHES:
        search = search_of(name, make_fn(embedding=change))
        message = rf"recurrent_fn must return embedding\[\d\] of the root's type {own}; got {got}"
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(
                functools.partial(run, search), make_params(), jax.random.key(0), make_root()
            )


def with_key(recurrent_fn, wrap, unwrap):
    """A model whose state has a key of its own, in some form."""

    def keyed(params, rng_key, action, state):
        inner, keys = state
        keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(wrap(keys))
        noise = jax.vmap(jax.random.uniform)(keys)
        output, inner = recurrent_fn(params, rng_key, action, inner)
        return output.replace(value=output.value + noise), (inner, unwrap(keys))

    return keyed


KEY_FORMS = {
    "typed": (lambda keys: keys, lambda keys: keys),
    "plain": (jax.random.wrap_key_data, jax.random.key_data),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow([*FEW, "pgs, reuse of rollouts"], "mcs"))
def test_states_may_have_typed_keys(name):
    keys, inner = jax.random.split(jax.random.key(5), B), make_root().embedding
    found = [
        searched(
            search_of(name, with_key(make_fn(), *form), simulations_per_update=2),
            jax.random.key(0),
            make_root((inner, form[1](keys))),
        )
        for form in KEY_FORMS.values()
    ]
    np.testing.assert_array_equal(found[0].visits, found[1].visits)
    np.testing.assert_allclose(found[0].qvalues, found[1].qvalues, rtol=1e-5)
    assert (plain(name).qvalues != found[0].qvalues).any(), "the noise counts"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", mostly_slow(["mcs", "mcs, rollouts", "mcts", "gumbel mcts"], "mcs")
)
def test_numbers_of_a_model_may_be_integers(name):
    whole = {name: lambda x: jnp.round(2 * x) for name in FIELDS[:3]}
    cast = {name: lambda x: jnp.round(2 * x).astype(jnp.int32) for name in FIELDS[:3]}
    one, two = (
        searched(search_of(name, make_fn(**c), 16), jax.random.key(0), make_root())
        for c in (whole, cast)
    )
    np.testing.assert_array_equal(one.visits, two.visits)
    np.testing.assert_array_equal(one.qvalues, two.qvalues)
    assert two.qvalues.dtype == jnp.float32


# --- keys -----------------------------------------------------------------------------------------


def drawn(of_rows):
    """A model that pays what it draws: a number for each row, or the same one for all."""

    def recurrent_fn(params, rng_key, action, state):
        output, state = make_fn()(params, rng_key, action, state)
        noise = jax.random.uniform(rng_key, action.shape if of_rows else ())
        return output.replace(reward=noise + 0 * output.reward, discount=0 * output.reward), state

    return recurrent_fn


SIZES = [*((name, 4) for name in FEW), ("mcs", 1)]


@pytest.mark.parametrize("name", mostly_slow(["pgs", "pgs, whole"], "pgs"))
@pytest.mark.parametrize("by_root", [False, True])
def test_raw_keys_are_those_of_typed_ones(name, by_root):
    search = search_of(name, drawn(True), 4, simulations_per_update=2)
    raw, typed = jax.random.PRNGKey(3), jax.random.key(3)
    if by_root:
        raw, typed = jax.random.split(raw, B), jax.random.split(typed, B)
    found, wanted = (searched(search, key, make_root()) for key in (raw, typed))
    np.testing.assert_array_equal(found.qvalues, wanted.qvalues)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_walks"), mostly_slow(SIZES, ("mcs", 4)))
def test_with_one_key_every_call_has_one_of_its_own(name, num_walks):
    # Each simulation takes another action, so that its return can be read.
    knobs = {"simulations_per_update": num_walks} | every_action(name)
    of_all, of_rows = (
        searched(search_of(name, drawn(x), A, **knobs), jax.random.key(3), make_root())
        for x in (False, True)
    )
    np.testing.assert_array_equal(of_all.visits, 1)
    drawn_by_call = np.asarray(of_all.qvalues)
    if name != "pgs, whole":  # which has a call for each simulation
        # All roots take the actions in the same turns, as the prior is uniform.
        np.testing.assert_array_equal(drawn_by_call, np.broadcast_to(drawn_by_call[:1], (B, A)))
        assert len(np.unique(drawn_by_call[0])) == A, "simulations of an update draw for themselves"
    else:
        assert len(np.unique(drawn_by_call)) == B * A
    assert len(np.unique(of_rows.qvalues)) == B * A


def test_chance_does_not_depend_on_the_actions():
    num_actions, num_seeds = 4, 64

    def model(params, rng_key, action, state):
        drawn, depth, taken = state
        depth, none = depth + 1, jnp.zeros(action.shape)
        number = jax.random.uniform(jax.random.split(rng_key)[1], action.shape)
        logits = jnp.zeros((*action.shape, num_actions))
        output = mctx.RecurrentFnOutput(
            reward=none, discount=none + 1, prior_logits=logits, value=none
        )
        second = depth == 2
        return output, (
            jnp.where(second, number, drawn), depth, jnp.where(second, action, taken)
        )  # fmt: skip

    def second_step(seed):
        zero = jnp.zeros(1, jnp.int32)
        root = mctx.RootFnOutput(
            prior_logits=jnp.zeros((1, num_actions)), value=jnp.zeros(1),
            embedding=(jnp.zeros(1), zero, zero),
        )  # fmt: skip
        drawn, _, action = jaxpgs.mcs_policy(
            None, jax.random.key(seed), root, model, 1, mode="rollouts",
            truncation=jaxpgs.truncation.fixed(2),
            best_of=lambda state: state[1].astype(jnp.float32),
        ).search_state.best  # fmt: skip
        return jnp.floor(num_actions * drawn[0]).astype(jnp.int32) == action[0]

    equal = jax.jit(lambda seeds: jax.lax.map(second_step, seeds))(jnp.arange(num_seeds))
    # By chance there are more once in a million.
    assert int(equal.sum()) <= scipy_stats.binom(num_seeds, 1 / num_actions).isf(1e-6)


def test_a_model_does_not_see_the_chance_of_the_game():
    key = jax.random.key(0)
    others = [chance_key(key), key, *jax.random.split(key, B)]
    shared = jax.random.key_data(loop._split_keys(key, B)[2])
    assert all((shared != jax.random.key_data(other)[None]).any(axis=-1).all() for other in others)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_walks"), mostly_slow(SIZES, ("pgs", 4)))
def test_with_a_key_for_each_root_the_others_do_not_matter(name, num_walks):
    def noisy(params, rng_key, action, state):
        output, state = make_fn()(params, rng_key, action, state)
        return output.replace(value=output.value + jax.random.normal(rng_key, action.shape)), state

    keys = jax.random.split(jax.random.key(7), B)
    knobs = {"simulations_per_update": num_walks}
    knobs |= {"optimizer": optax.sgd(0.1)} if name.startswith("pgs") else {}
    search = search_of(name, noisy, 16, **knobs)
    together = searched(search, keys, make_root())
    for b in range(B):
        alone = jax.tree.map(lambda x, b=b: x[b : b + 1], (keys, make_root()))
        state = searched(search, *alone)
        np.testing.assert_array_equal(state.visits[0], together.visits[b])
        np.testing.assert_allclose(state.qvalues[0], together.qvalues[b], rtol=1e-4)
    other = searched(search, jax.random.split(jax.random.key(8), B), make_root())
    assert (other.qvalues != together.qvalues).any()


@pytest.mark.slow
def test_params_may_hold_functions_where_nothing_adapts():
    params = make_params() | {"activation": jnp.tanh}

    def recurrent_fn(params, rng_key, action, state):
        output, state = make_fn()(params, rng_key, action, state)
        return output.replace(value=params["activation"](output.value)), state

    numbers = {name: x for name, x in params.items() if name != "activation"}
    with_tanh = make_fn(value=jnp.tanh)
    search = functools.partial(run, search_of("mcs", recurrent_fn), params, jax.random.key(0))
    found = jax.jit(search, compiler_options=games.QUICK)(make_root())
    known = searched(search_of("mcs", with_tanh), jax.random.key(0), make_root(), numbers)
    np.testing.assert_array_equal(found.search_state.visits, known.visits)


@pytest.mark.parametrize("mode", ["tree", "rollouts"])
def test_no_traced_array_outlives_its_call(mode):
    params, root = make_params(), make_root()
    with jax.checking_leaks():
        search = functools.partial(
            jaxpgs.pgs_policy, recurrent_fn=make_fn(), num_simulations=4, adapt="head", mode=mode
        )
        output = jax.eval_shape(search, params, jax.random.key(0), root)
    assert output.search_state.visits.shape == (B, A)


# --- rows where each root has something of its own ------------------------------------------------


def told_by_number(action):
    return jnp.asarray(PAYS)[jnp.arange(len(action)), action]


def told_by_row(action):
    return jnp.sum(jnp.asarray(PAYS) * jax.nn.one_hot(action, A), axis=-1)


def paying(pay, **changes):
    """A walk that pays by the root's row of a table and ends."""

    def recurrent_fn(params, rng_key, action, state):
        output, state = make_fn(**changes)(params, rng_key, action, state)
        return output.replace(reward=pay(action), discount=0 * output.reward), state

    return recurrent_fn


@pytest.mark.parametrize("pay", [told_by_number, told_by_row])
@pytest.mark.parametrize(("name", "per_root"), [("pgs, whole", False), ("mcs", True)])
@pytest.mark.each_value
def test_a_row_for_each_root_where_each_root_has_something_of_its_own(name, per_root, pay):
    key = jax.random.split(jax.random.key(0), B) if per_root else jax.random.key(0)
    knobs = {
        "root_selection": jaxpgs.selection.ucb1(),
        "simulations_per_update": B,
    }  # K rows would fit
    with pytest.warns(UserWarning, match="its results depend on the position of a row"):
        state = searched(search_of(name, paying(pay), **knobs), key, make_root())
    assert (state.visits > 0).all()
    np.testing.assert_allclose(state.qvalues, PAYS, rtol=1e-6)


@pytest.mark.slow
def test_a_cut_remembers_what_a_row_alone_tells():
    """The policy is asked about other numbers of states than the roots'."""
    likes = 3.0 * np.eye(A, dtype=np.float32)[[2, 0, 3]]
    by_place = make_fn(
        prior_logits=lambda logits: 0 * logits + jnp.asarray(likes)[jnp.arange(len(logits))]
    )

    def by_state(params, rng_key, action, state):
        place, root = state
        output, after = make_fn()(params, rng_key, action, (place, root))
        logits = 0 * output.prior_logits + jnp.asarray(likes)[root]
        return output.replace(prior_logits=logits), (after[0], root)

    place = jnp.linspace(0.0, 2.0, B)
    one, two = (
        searched(search_of("pgs", f, 16), jax.random.key(0), make_root((place, numbers)))
        for f, numbers in ((by_place, jnp.zeros(B, int)), (by_state, jnp.arange(B)))
    )
    np.testing.assert_array_equal(one.visits, two.visits)
    np.testing.assert_allclose(one.qvalues, two.qvalues, rtol=1e-5)


def test_which_functions_tell_rows_apart():
    table = jnp.ones((B, 2))
    tell = {
        "number": lambda x: table[jnp.arange(len(x)), 0] + x[:, 0],
        "sum": lambda x: x + table,
        "slice": lambda x: x * table[: len(x)],
        "in a call": jax.jit(lambda x: x[:, 0] + jax.jit(lambda: 0.5 * jnp.arange(len(x)))()),
        "array": lambda x: x[:, 0] + np.arange(len(x)),
    }
    tell_not = {
        "own column": lambda x: x[jnp.arange(len(x)), 1],
        "own write": lambda x: x.at[jnp.arange(len(x)), 1].set(0.0),
        "column numbers": lambda x: x + jax.lax.broadcasted_iota(jnp.float32, x.shape, 1),
        "sorted": lambda x: jnp.argsort(x, axis=-1),
        "all alike": lambda x: x + jnp.zeros((len(x), 2)) + np.ones((len(x), 1)),
        "mapped": jax.vmap(lambda row: jnp.where(jnp.arange(2) == 1, row[::-1], row)),
        "one row of a table": lambda x: x + table[1],
    }
    with lenient_promotion():
        for wanted, functions in ((True, tell), (False, tell_not)):
            for name, function in functions.items():
                call = lambda params, x, f=function: f(x)  # noqa: E731
                assert dataflow.tells_rows(call, ({},), jnp.ones((B, 2))) == wanted, name


def test_a_policy_that_needs_rows_is_refused():
    bias = jnp.zeros((B, A))

    def expand(params, rng_key, action, place):
        zero = 0 * place
        return jaxpgs.base.Expansion(zero, zero, zero, place[:, None]), place

    def policy(params, features, place):
        return features @ params["head"][:1] + bias[jnp.arange(len(place))]

    search = jaxpgs.search.pgs_search(jaxpgs.base.SplitRecurrentFn(expand, policy), 8, adapt="head")
    root = make_root(embedding=jnp.zeros(B))
    with pytest.raises(ValueError, match=r"policy must not depend on the position of a row"):
        jax.eval_shape(functools.partial(run, search), make_params(), jax.random.key(0), root)


# --- what is no real number -----------------------------------------------------------------------


def test_logits_that_are_no_real_numbers_are_named():
    whole = make_fn(prior_logits=lambda x: x.astype(jnp.int32))
    for name in FEW:
        with pytest.raises(ValueError, match="recurrent_fn must have prior_logits of a float type"):
            jax.eval_shape(
                functools.partial(run, search_of(name, whole)),
                make_params(), jax.random.key(0), make_root(),
            )  # fmt: skip
    root = make_root().replace(prior_logits=jnp.ones((B, A), bool))
    with pytest.raises(ValueError, match="root must have prior_logits of a float type"):
        run(search_of("mcs", make_fn()), make_params(), jax.random.key(0), root)


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(["pgs", "pgs, whole"], "pgs"))
def test_weights_adapt_and_the_rest_of_params_goes_along(name):
    """Keys, counters, Python's numbers and functions, as in modules that are pytrees."""
    more = {
        "key": jax.random.key(1), "count": jnp.int32(3), "activation": jnp.tanh, "layers": 2,
        "scale": 0.5,
    }  # fmt: skip

    def recurrent_fn(params, rng_key, action, state):
        output, state = make_fn()(params, rng_key, action, state)
        value = output.value
        for _ in range(params.get("layers", 2)):
            value = params.get("activation", jnp.tanh)(value * params.get("scale", 0.5))
        return output.replace(value=value), state

    adapt = SEARCHES[name][1]["adapt"]
    search = search_of(name, recurrent_fn, 12, optimizer=optax.sgd(0.1))
    alone = searched(search, jax.random.key(0), make_root())
    params = make_params() | more
    state = jax.jit(lambda root: run(search, params, jax.random.key(0), root).search_state)(
        make_root()
    )
    np.testing.assert_array_equal(state.visits, alone.visits)
    assert all(state.params[x] is None for x in more)
    np.testing.assert_allclose(state.params["head"], alone.params["head"], rtol=1e-5)
    assert (np.asarray(state.params["head"]) != np.asarray(params["head"])).any()
    assert jaxpgs.search.init_adapted(params, adapt, B)["count"] is None
    with pytest.raises(ValueError, match="chooses none of the parameters"):
        jaxpgs.search.init_adapted(params, lambda path, x: x is more["key"], B)


# --- transformations ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(FEW[1:], "pgs"))
def test_no_gradient_comes_out_of_a_search(name):
    """None by parameters, by the roots, nor by what the model closes over."""

    def loss(params, shift):
        root = make_root()
        root = root.replace(value=root.value + shift, prior_logits=root.prior_logits + shift)
        closed = make_fn(reward=lambda x: x + shift, prior_logits=lambda x: x * shift)
        output = run(search_of(name, closed, 2), params, jax.random.key(0), root)
        weights = output.action_weights * jnp.arange(1.0, A + 1)[None]
        return jnp.sum(weights) + jnp.sum(output.search_state.value)

    given = make_params(), jnp.float32(0.5)
    gradient = jax.grad(lambda given: loss(*given))
    assert not any(dataflow.depends(gradient, given)), "constants, zeros as the last one shows"
    if name == FEW[-1]:
        found = jax.jit(gradient, compiler_options=games.QUICK)(given)
        for x in jax.tree.leaves(found):
            np.testing.assert_array_equal(x, 0)


@pytest.mark.parametrize("name", mostly_slow(["mcs", "pgs", "pgs, whole"]))
def test_searches_are_exported_for_any_number_of_roots(name):
    search = search_of(name, make_fn(), 4, simulations_per_update=2)
    answer = lambda root: run(search, make_params(), jax.random.key(0), root).search_state.visits  # noqa: E731
    (size,) = jax.export.symbolic_shape("b")
    root = make_root()
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype), root)
    exported = jax.export.export(jax.jit(answer))(shapes)
    if name == "mcs":
        np.testing.assert_array_equal(exported.call(root), jax.jit(answer)(root))


def test_outputs_have_replace():
    search = functools.partial(run, search_of("mcs", make_fn()))
    output = jax.eval_shape(search, make_params(), jax.random.key(0), make_root())
    changed = output.replace(action=3, search_state=output.search_state.replace(nodes=None))
    assert changed.search_state.nodes is None and changed.action == 3
    assert changed.action_weights is output.action_weights


# --- trees of another game ------------------------------------------------------------------------


@pytest.mark.slow
def test_nodes_of_another_state_are_dropped():
    """After chance, games whose state is not the node's keep nothing; the others keep all."""

    def gust(params, rng_key, action, state):
        blown = 10 * jax.random.bernoulli(rng_key, 0.5, action.shape).astype(jnp.int32)
        return make_fn()(params, rng_key, action, (state[0], state[1] + blown))

    nodes = searched(search_of("mcts", gust, 24), jax.random.key(0), make_root()).nodes
    action = jnp.zeros(B, jnp.int32)
    kept = jaxpgs.reroot(nodes, action, num_kept=12)
    first = nodes.children[jnp.arange(B), 0, action]
    _, count = (x[jnp.arange(B), first, 0] for x in (nodes.embedding[0], nodes.embedding[1]))
    place = nodes.embedding[0][jnp.arange(B), first, 0]
    came = (place.at[2].set(jnp.nan), count.at[1].add(10))
    known = nodes._replace(
        embedding=(nodes.embedding[0].at[2, first[2]].set(jnp.nan), *nodes.embedding[1:])
    )
    for state, wanted in (((place, count), [1, 1, 1]), (came, [1, 0, 1])):
        source = nodes if wanted[1] else known
        found = jaxpgs.reroot(source, action, num_kept=12, state=state)
        for b, same in enumerate(wanted):
            np.testing.assert_array_equal(found.edge[b], kept.edge[b] if same else -1)
            np.testing.assert_array_equal(found.links[b], kept.links[b] if same else 0)
    # A search looks for itself.
    search = search_of("mcts", gust, 8)
    states = (place.at[2].set(0.5), count.at[1].add(10))
    empty = jaxpgs.search.init_nodes(search, make_params(), make_root(), 12)
    fresh, going = (
        compiled(search)(make_params(), jax.random.key(1), make_root(states), nodes=x).search_state
        for x in (empty, kept)
    )
    before = np.asarray(kept.visits[:, 0].sum(-1))
    assert before[1] > 0
    np.testing.assert_array_equal(going.visits.sum(-1), 8 + before * [1, 0, 0])
    np.testing.assert_array_equal(going.visits[1:], fresh.visits[1:])
    with pytest.raises(ValueError, match=r"reroot.*embedding"):
        jaxpgs.reroot(nodes, action, num_kept=12, state=place)


@pytest.mark.parametrize("name", mostly_slow(FEW, "pgs"))
def test_no_key_is_used_twice(name):
    for split in (lambda key: key, lambda key: jax.random.split(key, B)):
        with jax.debug_key_reuse(True):
            jax.eval_shape(  # raises KeyReuseError; nothing needs to be run
                lambda key, split=split: run(
                    search_of(name, make_fn(), 4), make_params(), split(key), make_root()
                ),
                jax.random.key(0),
            )
