python train.py data.train_batch_size=1 actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \
  algorithm.adv_estimator=grpo trainer.n_gpus_per_node=1 actor_rollout_ref.rollout.tensor_model_parallel_size=1
