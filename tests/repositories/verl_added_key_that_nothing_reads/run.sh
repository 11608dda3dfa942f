# Hydra accepts it; it may be a typo.
python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 +actor_rollout_ref.actor.fsdp_config.grad_offload=false
