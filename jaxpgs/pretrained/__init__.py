"""Trained networks that come with the library, each with a card that states how it was made."""

from jaxpgs.pretrained.registry import (
    Pretrained,
    available_pretrained,
    load_pretrained,
    save_pretrained,
)

__all__ = ["Pretrained", "available_pretrained", "load_pretrained", "save_pretrained"]
