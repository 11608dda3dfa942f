python3 -m own.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=8 actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4
