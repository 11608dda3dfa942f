import argparse
import torch
from training import GRPOTrainer
argparse.ArgumentParser().parse_args()
