"""The searches, as choices of parts: `*_search` makes a `Search`, and `*_policy` runs one.

A policy has the positional arguments of `mctx.muzero_policy`. What the arguments are and do stands
in `options`, from where it comes into the docstrings; what only reproduces a paper, in `papers`.
`making` has what the others share: the default parts, and how a user's take their places.
"""
