"""What a search learns from its simulations: gradients of its objective, and their steps."""
