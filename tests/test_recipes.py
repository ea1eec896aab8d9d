"""The recipes beside the cards of what they made."""

import pytest

import jaxpgs
from jaxpgs.training import recipes, recipes_samegame

HEX = [name for name in jaxpgs.available_pretrained() if name in recipes.RECIPES]
SAMEGAME = [name for name in jaxpgs.available_pretrained() if name in recipes_samegame.RECIPES]


def test_every_network_has_a_recipe():
    assert set(HEX) | set(SAMEGAME) == set(jaxpgs.available_pretrained())


@pytest.mark.parametrize("name", HEX)
def test_recipes_of_hex_are_what_was_done(name):
    net, recipe = jaxpgs.load_pretrained(name), recipes.RECIPES[name]
    kind, sizes = recipe.network
    assert net.env == recipe.env and net.card["architecture"]["network"] == kind
    assert sizes.items() <= net.card["architecture"]["kwargs"].items()
    done = dict(net.card["training"])
    assert done.pop("iterations") == recipe.num_iterations
    expert = done.pop("expert")  # the first cards name the function and the simulations in one
    first = expert == f"mctx.gumbel_muzero_policy, {recipe.num_simulations} simulations"
    assert first or (expert, done.pop("simulations")) == (recipe.expert, recipe.num_simulations)
    assert done.pop("parent", None) == recipe.parent
    assert done.items() <= recipe.games.items() if first else done == recipe.games


@pytest.mark.parametrize("name", SAMEGAME)
def test_recipes_of_samegame_are_what_was_done(name):
    net, recipe = jaxpgs.load_pretrained(name), recipes_samegame.RECIPES[name]
    assert net.env == recipe.env
    assert recipe.network.items() <= net.card["architecture"]["kwargs"].items()
    done = net.card["training"]
    assert done["simulations"] == recipe.num_simulations and done["parent"] == recipe.parent
    assert (done["generations"], done["num_runs"]) == (recipe.num_iterations, recipe.num_runs)
    assert all(done[key] == list(value) for key, value in recipe.expert.items())
