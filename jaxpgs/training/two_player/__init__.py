"""Expert iteration: self-play of a search, and learning from it."""
