from own.configs import GRPOConfig
from trl import GRPOTrainer, ModelConfig, TrlParser
args, _ = TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config()
GRPOTrainer(reward_funcs=[len], args=args, train_dataset=1)
