"""Stores, the memory of a search: nodes of a tree, or rollouts."""
