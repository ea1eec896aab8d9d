import functools
import hashlib
import json
import os

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from games import mostly_slow

from jaxpgs import pretrained
from jaxpgs.envs import Hex, hex
from jaxpgs.networks import AlphaZeroResNet, FullyConnectedResNet, WithOffsets, functional
from jaxpgs.pretrained import available_pretrained, load_pretrained, save_pretrained
from jaxpgs.pretrained.files import flatten, unflatten

ENV = Hex(3, swap=True)


def _make(kind="fully_connected"):
    rngs = nnx.Rngs(1)
    if kind == "resnet":
        return AlphaZeroResNet(
            ENV.observation_shape, ENV.num_actions, num_filters=4, num_blocks=1, rngs=rngs
        )
    network = FullyConnectedResNet(
        ENV.observation_shape, ENV.num_actions, width=8, num_blocks=2, dtype="bfloat16", rngs=rngs
    )
    return WithOffsets(network, ["sharp", "twice"]) if kind == "offsets" else network


def _save(folder, name="tiny", kind="fully_connected", **fields):
    module = _make(kind)
    params = jax.tree.map(lambda x: x + 0.25, functional(module)[0])
    card = save_pretrained(folder, name, env=ENV, module=module, params=params, **fields)
    return params, card


def _edit_card(folder, **fields):
    """Changes a card on purpose, as its author may."""
    path = folder / "tiny.json"
    card = json.loads(path.read_text()) | fields
    card.pop("card_sha256", None)
    path.write_text(json.dumps(card))


def test_curated_exports():
    assert all(hasattr(pretrained, name) for name in pretrained.__all__)


def test_half_of_the_bits(tmp_path):
    params, whole = _save(tmp_path)
    size = (tmp_path / "tiny.safetensors").stat().st_size
    _, card = _save(tmp_path, half=True)
    assert card["architecture"] == whole["architecture"] | {"stored": "float16"}
    assert (tmp_path / "tiny.safetensors").stat().st_size < 0.7 * size
    found = load_pretrained("tiny", directory=tmp_path).params
    chex.assert_trees_all_equal_dtypes(found, params)
    rounded = jax.tree.map(lambda x: x.astype(jnp.float16).astype(x.dtype), params)
    chex.assert_trees_all_equal(found, rounded)
    module = _make()
    large = jax.tree.map(lambda x: x + 1e5, params)
    with pytest.raises(ValueError, match="not finite"):
        save_pretrained(tmp_path, "large", env=ENV, module=module, params=large, half=True)


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["fully_connected", "resnet", "offsets"])
def test_round_trip(tmp_path, kind):
    params, card = _save(tmp_path, kind=kind, seed=5, strength={"elo": 12.5})
    loaded = load_pretrained("tiny", directory=tmp_path)
    assert loaded.env == ENV
    assert type(loaded.module) is type(_make(kind))
    assert loaded.card == card
    assert (card["seed"], card["strength"]) == (5, {"elo": 12.5})
    chex.assert_trees_all_equal(loaded.params, params)
    chex.assert_trees_all_equal_dtypes(loaded.params, params)

    observation = jax.random.normal(jax.random.key(0), (5, *ENV.observation_shape))
    expected = jax.jit(functional(_make(kind))[1])(params, observation)
    found = jax.jit(loaded.apply_fn)(loaded.params, observation)
    chex.assert_trees_all_close(found, expected, rtol=1e-6)
    # Evaluation mode: calling the module gives the same and changes nothing.
    chex.assert_trees_all_close(
        jax.jit(lambda x: loaded.module(x))(observation), expected, rtol=1e-6
    )
    chex.assert_trees_all_equal(functional(loaded.module)[0], params)


def test_the_card_describes_network_and_environment(tmp_path):
    _, card = _save(tmp_path)
    assert card["architecture"] == {
        "network": "FullyConnectedResNet",
        "kwargs": {"width": 8, "num_blocks": 2, "dtype": "bfloat16"},
    }
    assert card["environment"] == {
        "name": "Hex",
        "kwargs": {"size": 3, "swap": True},
        "version": hex.VERSION,
    }
    assert json.loads((tmp_path / "tiny.json").read_text()) == card
    weights = safetensors.numpy.load_file(tmp_path / "tiny.safetensors")
    assert weights["torso.blocks.1.alpha"].shape == ()
    assert weights["policy_head.linear.kernel"].shape == (8, 10)


def test_saving_again_replaces_and_leaves_no_other_files(tmp_path):
    first, _ = _save(tmp_path / "new" / "folder")
    module = _make()
    second = jax.tree.map(lambda x: x - 1.0, first)
    folder = tmp_path / "new" / "folder"
    save_pretrained(folder, "tiny", env=ENV, module=module, params=second)
    chex.assert_trees_all_equal(load_pretrained("tiny", directory=folder).params, second)
    assert sorted(os.listdir(folder)) == ["tiny.json", "tiny.safetensors"]


def test_a_failed_write_leaves_the_old_network(tmp_path, monkeypatch):
    params, card = _save(tmp_path)
    module = _make()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_pretrained(tmp_path, "tiny", env=ENV, module=module, params=functional(module)[0])
    monkeypatch.undo()
    loaded = load_pretrained("tiny", directory=tmp_path)
    assert loaded.card == card
    chex.assert_trees_all_equal(loaded.params, params)
    assert sorted(os.listdir(tmp_path)) == ["tiny.json", "tiny.safetensors"]


def test_one_changed_byte_is_noticed(tmp_path):
    _, card = _save(tmp_path)
    path = tmp_path / "tiny.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"tiny\.safetensors.*[0-9a-f]{{64}}.*{card['sha256']}"):
        load_pretrained("tiny", directory=tmp_path)


def test_names(tmp_path):
    assert available_pretrained(tmp_path) == available_pretrained(tmp_path / "absent") == ()
    _save(tmp_path, "b")
    _save(tmp_path, "a")
    (tmp_path / "half.json").write_text("{}")
    (tmp_path / "notes.safetensors").write_bytes(b"")
    assert available_pretrained(tmp_path) == ("a", "b")
    for name in ("c", "half", "", "../a", "a.json"):
        with pytest.raises(ValueError, match=r"available in .*: a, b\."):
            load_pretrained(name, directory=tmp_path)
    with pytest.raises(ValueError, match="Unknown pretrained network 'no such'"):
        load_pretrained("no such")
    with pytest.raises(ValueError, match=r"available in .*: none"):
        load_pretrained("a", directory=tmp_path / "absent")


def test_cards_that_do_not_fit_this_library(tmp_path):
    _, card = _save(tmp_path)
    environment, architecture = card["environment"], card["architecture"]

    def refused(match, **fields):
        _edit_card(tmp_path, **fields)
        with pytest.raises(ValueError, match=match):
            load_pretrained("tiny", directory=tmp_path)
        _edit_card(tmp_path, **card)

    refused(
        rf"'tiny'.*version 99 of Hex.*version {hex.VERSION}\.",
        environment=environment | {"version": 99},
    )
    refused("no environment 'Chess'", environment=environment | {"name": "Chess"})
    refused("No network 'functional'", architecture=architecture | {"network": "functional"})
    refused("No network 'Dense'", architecture=architecture | {"network": "Dense"})
    kwargs = architecture["kwargs"]
    refused(
        r"'\S+' must be float32\[.*9.*\], got float32\[.*8",
        architecture=architecture | {"kwargs": kwargs | {"width": 9}},
    )
    refused(
        r"'torso\.blocks\.2\.\w+.*' of the module is missing",
        architecture=architecture | {"kwargs": kwargs | {"num_blocks": 3}},
    )
    refused(
        r"no parameters \['torso\.blocks\.1\.",
        architecture=architecture | {"kwargs": kwargs | {"num_blocks": 1}},
    )
    load_pretrained("tiny", directory=tmp_path)  # the card as it was is fine
    (tmp_path / "tiny.json").write_text('{"name": "tiny"}')
    with pytest.raises(ValueError, match=r"tiny\.json lacks \['architecture'.*'sha256'\]"):
        load_pretrained("tiny", directory=tmp_path)


def test_nothing_is_written_that_could_not_be_loaded(tmp_path):
    module = _make()
    params, _ = functional(module)

    def refused(match, name="tiny", env=ENV, params=params, **fields):
        with pytest.raises(ValueError, match=match):
            save_pretrained(tmp_path, name, env=env, module=module, params=params, **fields)

    refused(r"got '\.\./tiny'", name="../tiny")
    refused("got ''", name="")
    refused(r"\['sha256'\] are filled in", sha256="0")
    refused(r"\['card_sha256'\] are filled in", card_sha256="0")
    refused("JSON compliant", strength=float("nan"))
    head = params["policy_head"]["linear"]
    for number in (np.nan, np.inf):
        broken = {
            **params,
            "policy_head": {"linear": head | {"bias": head["bias"].at[1].set(number)}},
        }
        refused(r"1 of the 10 weights 'policy_head.linear.bias' are not finite", params=broken)
    refused(r"'policy_head\.linear\.bias' must be float32\[9\]", env=Hex(3))
    wrong = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    refused(r"must be float32\[.*got bfloat16", params=wrong)
    assert os.listdir(tmp_path) == []


def test_damaged_files_are_one_error_that_names_them(tmp_path):
    _, card = _save(tmp_path)
    path, weights = tmp_path / "tiny.json", tmp_path / "tiny.safetensors"
    text, data = path.read_text(), weights.read_bytes()
    many = {"architecture": card["architecture"] | {"kwargs": {"width": 8, "num_blocks": 3000}}}
    for broken, message in (
        ("", "JSONDecodeError"), ("[]", "lacks"), ("null", "TypeError"), ("\0", "JSON"), ("3", ""),
        ("[" * 99_999, "RecursionError"), (text[:-9], "JSON"), ('"\ud800"', ""),
        (json.dumps(card | many), "tiny.json is damaged: .* have its card_sha256"),
        (text.replace('"size": 3', '"size": 4'), "tiny.json is damaged"),
    ):  # fmt: skip
        path.write_bytes(broken.encode("utf-8", "surrogatepass"))
        with pytest.raises(ValueError, match=rf"tiny\.json or its weights cannot.*{message}"):
            load_pretrained("tiny", directory=tmp_path)
    # One of an earlier version, without a checksum, or changed on purpose.
    for fields, message in (
        (many, "num_blocks is 3000 in the card, for weights of 1"),
        ({"architecture": []}, "TypeError"), ({"environment": {"name": "Hex"}}, "KeyError"),
        ({"environment": card["environment"] | {"name": "HexState"}}, "no environment 'HexState'"),
        ({"architecture": {"network": "flatten", "kwargs": {}}}, "No network 'flatten'"),
        ({"architecture": card["architecture"] | {"kwargs": {"width": 2**70}}}, ""),
    ):  # fmt: skip
        _edit_card(tmp_path, **(card | fields))
        with pytest.raises(ValueError, match=rf"tiny\.json or its weights cannot.*{message}"):
            load_pretrained("tiny", directory=tmp_path)

    def save_as(name, data):
        digest = hashlib.sha256(data).hexdigest()
        weights.write_bytes(data)
        _edit_card(tmp_path, **(card | {"sha256": digest}))
        with pytest.raises(ValueError, match=rf"tiny\.json or its weights cannot.*{name}"):
            load_pretrained("tiny", directory=tmp_path)

    save_as("SafetensorError", data[:50])
    save_as("SafetensorError", b"\xff" * 100)
    arrays = safetensors.numpy.load(data)
    arrays["policy_head.linear.bias"] = arrays["policy_head.linear.bias"] * np.float32(np.nan)
    save_as("10 of the 10 weights 'policy_head.linear.bias'", safetensors.numpy.save(arrays))


def test_flatten_round_trip():
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    params = {
        "b": {"10": {"x": np.float32(3.0)}, "2": {"x": transposed}},
        "a": np.zeros((0, 4), np.int8),
    }
    flat = flatten(params)
    assert {name: leaf.shape for name, leaf in flat.items()} == {
        "a": (0, 4),
        "b.10.x": (),
        "b.2.x": (3, 2),
    }
    through_bytes = unflatten(safetensors.numpy.load(safetensors.numpy.save(flat)))
    for result in (unflatten(flat), through_bytes):
        chex.assert_trees_all_equal(result, params)
        chex.assert_trees_all_equal_shapes_and_dtypes(result, params)
    for bad in ({"a.b": 1}, {"a": {0: 1}}, {"a": {}}):
        with pytest.raises(ValueError, match=r"without a dot|are empty"):
            flatten(bad)


def evaluate(loaded, params):
    state = loaded.env.init(jax.random.key(0))
    return loaded.apply_fn(params, loaded.env.observe(state)[None])


@pytest.mark.parametrize("name", available_pretrained())
def test_shipped_networks(name):
    loaded = load_pretrained(name)
    fields = {"command", "seed", "wall_time_s", "date", "versions", "hardware", "strength"}
    assert fields <= set(loaded.card)
    assert loaded.card["name"] == name
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(loaded.params))
    logits, value = jax.eval_shape(functools.partial(evaluate, loaded), loaded.params)
    assert logits.shape == (1, loaded.env.num_actions) and value.shape == (1,)


@pytest.mark.parametrize("name", mostly_slow(available_pretrained(), "hex-5x5-early"))
def test_shipped_networks_answer(name):
    loaded = load_pretrained(name)
    logits, value = jax.jit(functools.partial(evaluate, loaded))(loaded.params)
    assert np.isfinite(logits).all()
    assert np.isfinite(value).all() and (loaded.env.num_players == 1 or abs(float(value[0])) <= 1)
