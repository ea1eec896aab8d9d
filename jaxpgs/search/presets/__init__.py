"""The searches, as choices of parts: `*_search` makes a `Search`, and `*_policy` runs one.

A policy has the positional arguments of `mctx.muzero_policy`. `options` describes the arguments,
and its text is inserted into the docstrings. Settings that only reproduce a paper are in `papers`.
`making` has what the presets share: the default parts, and how a user's parts replace them.
"""
