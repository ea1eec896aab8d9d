"""What a search remembers: nodes of a tree, or rollouts."""
