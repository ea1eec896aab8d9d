"""Policy gradient search: planning without a search tree, in JAX."""
