# A user's report: training stalled after 30 steps.
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=32 actor_rollout_ref.rollout.n=5 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2 actor_rollout_ref.actor.ppo_mini_batch_size=8 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.actor.optim.lr=1e-06 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
  actor_rollout_ref.actor.use_kl_loss=true actor_rollout_ref.actor.kl_loss_coef=0.001 algorithm.kl_ctrl.kl_coef=0.1 \
  actor_rollout_ref.rollout.name=vllm
