# verl 0.1 uses the sizes in training.
python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.ppo_mini_batch_size=64 data.train_batch_size=16 trainer.n_gpus_per_node=5 actor_rollout_ref.actor.ppo_micro_batch_size=15
