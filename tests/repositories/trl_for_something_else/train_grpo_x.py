import argparse
import torch
from models.reward import RewardModel
parser = argparse.ArgumentParser()
parser.add_argument("--gradient_accumulation_steps", type=int)
parser.add_argument("--num_generations", type=int)
parser.add_argument("--output_dir")
args = parser.parse_args()
