# The package is not in the place of verl's. Its configuration sets what verl's leaves open, and has keys of any type.
python3 -m verl.agent_trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 'algorithm.rounds=[1,2]'
