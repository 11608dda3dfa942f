from dataclasses import dataclass, field
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser
@dataclass
class Mine(ScriptArguments):
    reward_funcs: list[str] = field(default_factory=lambda: ["a", "b"])
if __name__ == "__main__":
    parser = TrlParser((Mine, GRPOConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    trainer = GRPOTrainer(model=model_args.model_name_or_path, args=training_args, reward_funcs=[len], train_dataset=None)
    trainer.train()
