"""Learning by policy gradients against past selves."""
