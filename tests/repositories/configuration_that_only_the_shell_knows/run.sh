# What it sets cannot be missing.
python3 -m verl.trainer.main_ppo --config-name "$NAME" data.train_batch_size=64
