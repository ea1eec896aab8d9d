"""The former name of `jaxpgs.training.recipes`."""

from jaxpgs.deprecation import former_module
from jaxpgs.training.experts import make_expert as tuned_expert
from jaxpgs.training.recipes import RECIPES, Clock, grown, main, origin
from jaxpgs.training.recipes import HexRecipe as Recipe

__all__ = ["RECIPES", "Clock", "Recipe", "grown", "main", "origin", "tuned_expert"]

former_module(__name__, "jaxpgs.training.zoo", "jaxpgs.training.recipes")

if __name__ == "__main__":
    main()
