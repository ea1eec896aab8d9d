"""OpenSpiel's MCTS bot as a program that speaks GTP.

python tests/openspiel_gtp.py 5 1000     # board size, and simulations per move
"""

import sys

from jaxpgs.envs import Hex
from jaxpgs.evaluation import openspiel_mcts
from jaxpgs.gtp import Options, player_engine, serve

if __name__ == "__main__":
    size, simulations = map(int, sys.argv[1:])
    env = Hex(size)
    serve(player_engine(env, openspiel_mcts(env, num_simulations=simulations)), size, Options())
