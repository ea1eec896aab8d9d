"""The former name of `jaxpgs.training.recipes_samegame`."""

from jaxpgs.deprecation import former_module
from jaxpgs.training.recipes_samegame import RECIPES, main
from jaxpgs.training.recipes_samegame import SameGameRecipe as Recipe

__all__ = ["RECIPES", "Recipe", "main"]

former_module(__name__, "jaxpgs.training.zoo_samegame", "jaxpgs.training.recipes_samegame")

if __name__ == "__main__":
    main()
