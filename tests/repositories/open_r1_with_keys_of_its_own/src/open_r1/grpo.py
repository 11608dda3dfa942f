"""The program of a fork."""

from open_r1.configs import GRPOScriptArguments
from trl import GRPOConfig, ModelConfig, TrlParser

args = TrlParser((GRPOScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
